"""`hgpo data generate|check webshop`: files, output, and exit codes."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from env_wrappers.webshop.generator import ATTRIBUTES, HUMAN, ITEMS, generate
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from hgpo_rllib.settings.generated import StoreSettings
from tests.unit.cli.command import Run
from tests.unit.env_wrappers.webshop.webshop_data import item, write_data

FEW = ("store.products=30", "store.seed=4", "store.lookalikes=2")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class TestGenerate:
    def test_what_is_generated(self, hgpo: Run, tmp_path: Path) -> None:
        """Files equal the generator's; a second call changes nothing, another spec fails."""
        out = tmp_path / "store"
        status, stdout, stderr = hgpo("data", "generate", "webshop", out, *FEW)
        assert (status, stdout) == (0, f"{out}: generated\n")
        assert "generating data: 30/30" in stderr
        generate(tmp_path / "same", CatalogueSpec(products=30, seed=4, lookalikes=2))
        before = contents(out)
        assert before == contents(tmp_path / "same")

        status, stdout, stderr = hgpo("data", "generate", "webshop", out, *FEW)
        assert (status, stdout, stderr) == (0, f"{out}: these data already exist\n", "")
        line = hgpo.refusal("data", "generate", "webshop", out, *FEW, "store.human=0")
        assert "another spec" in line
        assert contents(out) == before

    def test_the_defaults_are_the_generators(self) -> None:
        defaults = asdict(CatalogueSpec())
        del defaults["instructed"]
        assert StoreSettings().model_dump() == defaults


class TestCheck:
    def test_a_catalogue(self, hgpo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store is given as an argument or by $WEBSHOP_DATA."""
        generate(tmp_path / "store", CatalogueSpec(products=30))
        status, stdout, stderr = hgpo("data", "check", "webshop", tmp_path / "store", "--replay")
        assert status == 0, stdout
        assert "playing goals" in stderr
        first, *lines = stdout.splitlines()
        assert first.startswith(f"{tmp_path / 'store'} (generated): 30 products: ")
        (played,) = [line for line in lines if line.startswith("synthetic goals played: ")]
        number = played.split()[3].rstrip(",")
        assert played == f"synthetic goals played: {number}, earned 1.0: {number}"

        monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path / "store"))
        status, stdout, stderr = hgpo("data", "check", "webshop")
        assert (status, stderr) == (0, "")
        assert stdout.startswith("$WEBSHOP_DATA (generated): 30 products: ")
        assert f"synthetic goals: {number}: " in stdout
        status, stdout, _ = hgpo("data", "check", "webshop", "--replay", "--limit", "3")
        assert "human goals played: 3, earned 1.0: 3" in stdout

    def test_what_is_broken(self, hgpo: Run, tmp_path: Path) -> None:
        """A changed file or an unreachable goal gives exit code 1, an unusable file 2."""
        store = tmp_path / "store"
        generate(store, CatalogueSpec(products=30))
        human = (store / HUMAN).read_bytes()
        (store / HUMAN).write_text("{}")
        status, stdout, _ = hgpo("data", "check", "webshop", store)
        assert status == 1
        assert f"broken: {HUMAN}: is not as it was generated" in stdout
        assert "human goals" not in stdout
        (store / HUMAN).write_bytes(human)
        assert hgpo("data", "check", "webshop", store)[0] == 0
        records = json.loads((store / ATTRIBUTES).read_text())
        record = next(record for record in records.values() if "instruction" in record)
        record["instruction_attributes"].append("able to fly")
        (store / ATTRIBUTES).write_text(json.dumps(records))
        status, stdout, _ = hgpo("data", "check", "webshop", store, "--replay")
        assert status == 1
        assert f"broken: {ATTRIBUTES}: is not as it was generated" in stdout
        assert "broken: synthetic goal " in stdout
        (store / ITEMS).write_text("[{")
        assert ITEMS in hgpo.refusal("data", "check", "webshop", store)

    def test_a_store_without_goals(self, hgpo: Run, tmp_path: Path) -> None:
        """A store with products but no instructions gives exit code 2."""
        write_data(tmp_path, items=[item("B1")], entries={"B1": {"attributes": ["soft"]}}, human={})
        line = hgpo.refusal("data", "check", "webshop", tmp_path)
        assert f"{tmp_path}: no goal for any of the 1 products" in line

    def test_bad_input(self, hgpo: Run, tmp_path: Path) -> None:
        status, _, stderr = hgpo("data", "check", "webshop", tmp_path, "--limit", "0")
        assert status == 2
        assert "--limit" in stderr
        status, _, stderr = hgpo("data", "check", "webshop", tmp_path, "--limit", "3")
        assert (status, "--limit needs --replay" in stderr) == (2, True)
        assert "hgpo data generate webshop" in hgpo.refusal("data", "check", "webshop", tmp_path)
