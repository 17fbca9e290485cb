"""Checks of docker/ that need no container engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.scripts.scripts import cli

from tests.paths import ROOT

DOCKER = ROOT / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[\w.-]*")
COMPOSE_FILES = [["compose.yml"], ["compose.yml", "compose.gpu.yml"]]
"""As they are given to Compose together."""
MORE_RIGHTS = {"privileged", "cap_add", "devices", "user", "userns_mode"}
MORE_RIGHTS |= {"network_mode", "pid", "ipc", "cgroup", "uts"}
IGNORED = (".git", ".env", ".venv", "data", "runs", "models", "tests", "docker")


def instructions() -> list[tuple[str, str]]:
    """Return instructions such as ``(FROM, image)``: continued lines joined, no comments."""
    lines = [x for x in DOCKERFILE.read_text().splitlines() if not x.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(pair[0], " ".join(pair[1].split())) for pair in pairs]


def arguments(name: str) -> list[str]:
    return [text for instruction, text in instructions() if instruction == name]


def in_context(path: str) -> bool:
    """Return whether .dockerignore, which is an allow list, includes a path of the checkout."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "an allow list begins with leaving everything out"
    return path.rstrip("/").split("/")[0] in {rule[1:] for rule in rules if rule[0] == "!"}


class TestDockerfile:
    def test_base_is_pinned_and_its_python_is_supported(self) -> None:
        (image,) = arguments("FROM")
        assert PINNED.fullmatch(image)
        assert image.startswith("python:3.11.")

    def test_runs_as_a_user_whose_number_is_known(self) -> None:
        """The user is given by number, so that an orchestrator can see that it is not root."""
        steps = instructions()
        (number,) = [i for i, (name, _) in enumerate(steps) if name == "USER"]
        assert steps[number][1] == "1000:1000"
        made = [text for name, text in steps[:number] if name == "RUN" and "useradd" in text]
        assert "--uid 1000" in made[0]

    def test_everything_copied_is_there(self) -> None:
        for text in arguments("COPY"):
            *sources, _ = [part for part in text.split() if not part.startswith("--")]
            for source in sources:
                assert (ROOT / source).exists()
                assert source == "." or in_context(source)

    def test_installs_what_the_project_installs(self) -> None:
        """Packages are installed before the code is copied, so that the layer stays cached."""
        names = [name for name, _ in instructions()]
        installs = [
            i
            for i, (name, text) in enumerate(instructions())
            if name == "RUN" and "requirements/install.py" in text
        ]
        assert len(installs) == 1
        assert installs[0] < len(names) - 1 - names[::-1].index("COPY")
        assert "HGPO_BACKEND=cpu" in arguments("ARG")
        assert "HGPO_BACKEND=$HGPO_BACKEND" in arguments("ENV")

    def test_packages_of_the_project_are_known_before_their_code(self) -> None:
        """Packages are copied before the editable install, which finds only existing ones."""
        early = arguments("COPY")[:-1]
        for package in ("hgpo_rllib", "env_wrappers"):
            assert any(f"{package}/__init__.py" in text for text in early)


def test_the_context_holds_the_code_and_nothing_private() -> None:
    for path in ("hgpo_rllib/algorithm.py", "tuned_examples/alfworld_pocket.yaml", "Makefile"):
        assert in_context(path)
        assert (ROOT / path).is_file()
    for path in IGNORED:
        assert not in_context(path)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge mappings as Compose merges one file into another."""
    merged = base | over
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            merged[key] = merge(base[key], over[key])
    return merged


def compose(*names: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in names:
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (DOCKER / name).read_text())  # defaults
        merged = merge(merged, yaml.safe_load(text))
    return merged


@pytest.fixture(params=COMPOSE_FILES, ids=["cpu", "gpu"])
def services(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the services, without and with GPUs."""
    return compose(*request.param)["services"]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the source of each target."""
    return {entry.split(":")[1]: entry.split(":")[0] for entry in service.get("volumes", [])}


class TestCompose:
    def test_all_files_are_tested(self) -> None:
        tested = {name for names in COMPOSE_FILES for name in names}
        assert tested == {file.name for file in DOCKER.glob("*compose*")}

    def test_images_are_built_here_or_pinned(self, services: dict[str, Any]) -> None:
        for service in services.values():
            if "build" in service:
                assert (DOCKER / service["build"]["context"]).resolve() == ROOT
                assert ROOT / service["build"]["dockerfile"] == DOCKERFILE
                backend = service["build"]["args"].get("HGPO_BACKEND", "cpu")
                assert service["image"] == f"hgpo-rllib:{backend}"
            else:
                assert PINNED.fullmatch(service["image"])

    def test_ports_are_published_on_loopback(self, services: dict[str, Any]) -> None:
        published = [port for service in services.values() for port in service.get("ports", [])]
        assert len(published) == 3
        for port in published:
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)

    def test_no_service_has_more_rights_than_it_needs(self, services: dict[str, Any]) -> None:
        """Services have no capabilities, no new privileges and no further access to the host."""
        for service in services.values():
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert not service.keys() & MORE_RIGHTS

    def test_every_service_says_whether_it_is_healthy(self, services: dict[str, Any]) -> None:
        for service in services.values():
            assert service["healthcheck"]["test"][0] == "CMD"
            for name in service.get("depends_on", ()):
                assert name in services

    def test_what_is_mounted_exists(self, services: dict[str, Any]) -> None:
        volumes = compose("compose.yml")["volumes"].keys()
        sources = [s for service in services.values() for s in mounts(service).values()]
        assert volumes == {source for source in sources if not source.startswith(".")}
        for source in sources:
            assert source in volumes or (DOCKER / source).exists()

    def test_volumes_of_nodes_lie_where_the_image_has_a_folder(
        self, services: dict[str, Any]
    ) -> None:
        """Volumes are mounted on folders of the image and so are not owned by root."""
        (made,) = [text for text in arguments("RUN") if "install -d" in text]
        for name in ("head", "worker"):
            assert set(mounts(services[name])) <= set(made.split())

    def test_a_worker_finds_models_where_the_head_does(self, services: dict[str, Any]) -> None:
        head, worker = mounts(services["head"]), mounts(services["worker"])
        assert worker.items() <= head.items()
        assert "/app/data" in worker

    @pytest.mark.parametrize("name", ["head", "worker"])
    def test_ray_knows_the_options(self, services: dict[str, Any], name: str) -> None:
        for command in (services[name]["command"], services[name]["healthcheck"]["test"][1:]):
            program, subcommand, *options = command
            assert program == "ray"
            cli.commands[subcommand].make_context(subcommand, list(options))

    def test_the_example_in_the_file_asks_for_what_workers_have(
        self, services: dict[str, Any]
    ) -> None:
        text = (DOCKER / "compose.yml").read_text()
        (wanted,) = re.findall(r"policy_server\.replica_resources='(.*)'", text)
        (offered,) = [
            yaml.safe_load(option.split("=", 1)[1])
            for option in services["worker"]["command"]
            if option.startswith("--resources=")
        ]
        assert yaml.safe_load(wanted) == offered

    def test_prometheus_reads_what_the_head_writes(self, services: dict[str, Any]) -> None:
        settings = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
        (scrape,) = settings["scrape_configs"]
        (file,) = scrape["file_sd_configs"][0]["files"]
        folder = str(Path(file).parent)
        head, prometheus = mounts(services["head"]), mounts(services["prometheus"])
        assert head[folder] == prometheus[folder]

    def test_grafana_is_told_what_its_files_ask_for(self, services: dict[str, Any]) -> None:
        grafana = services["grafana"]
        files = (DOCKER / "grafana").rglob("*.yml")
        asked = {name for file in files for name in re.findall(r"\$(HGPO_\w+)", file.read_text())}
        assert asked == {name for name in grafana["environment"] if name.startswith("HGPO_")}
        ((target, source),) = [m for m in mounts(grafana).items() if m[1].startswith(".")]
        for name in ("GF_PATHS_PROVISIONING", "HGPO_DASHBOARDS"):
            inside = Path(grafana["environment"][name]).relative_to(target)
            assert (DOCKER / source / inside).is_dir()
