"""Checks of docker/kuberay/ and docker/serve.yaml that need no Kubernetes.

No package has the schemas of KubeRay's resources. `FIELDS` is from their reference in Ray's docs.
"""

import importlib
import json
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.scripts.scripts import cli
from ray.serve.schema import ServeDeploySchema
from typer.main import get_command

from hgpo_rllib.cli.main import app
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.placement import check_run, trial_demand
from hgpo_rllib.run.serve_app import Arguments
from tests.paths import ROOT
from tests.unit.project.test_docker import DOCKER, arguments

MANIFESTS = sorted((DOCKER / "kuberay").glob("ray*.yaml"))
SPEC = {
    "RayCluster": set[str](),
    "RayJob": {
        *("entrypoint", "rayClusterSpec", "runtimeEnvYAML", "backoffLimit", "submitterConfig"),
        *("shutdownAfterJobFinishes", "ttlSecondsAfterFinished"),
    },
    "RayService": {"serveConfigV2", "rayClusterConfig"},
}
"""Fields of a spec that the manifests use, apart from those of a cluster."""
CLUSTER = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "headGroupSpec"}
CLUSTER |= {"workerGroupSpecs"}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def read(manifest: Path) -> dict[str, Any]:
    return yaml.safe_load(manifest.read_text())


def cluster(manifest: Path) -> dict[str, Any]:
    spec = read(manifest)["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def groups(manifest: Path) -> list[dict[str, Any]]:
    spec = cluster(manifest)
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def container(group: dict[str, Any]) -> dict[str, Any]:
    (one,) = group["template"]["spec"]["containers"]
    return one


def resources(group: dict[str, Any]) -> dict[str, float]:
    """Return the resources of a node in Ray, from its limits unless its parameters set them."""
    limits, parameters = container(group)["resources"]["limits"], group["rayStartParams"]
    offered = {"CPU": float(parameters.get("num-cpus", limits["cpu"]))}
    if "nvidia.com/gpu" in limits:
        offered["GPU"] = float(limits["nvidia.com/gpu"])
    return offered | json.loads(json.loads(parameters.get("resources", '"{}"')))


def gib(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi"))


def run_config(manifest: Path) -> RunConfig:
    """Return the settings of the run that a RayJob starts in the image's folder /app."""
    program, command, file, *overrides = shlex.split(read(manifest)["spec"]["entrypoint"])
    assert (program, command) == ("hgpo", "train")
    return load_config(ROOT / Path(file).relative_to("/app"), overrides)


def test_there_is_one_manifest_of_each_kind_and_a_job_on_gpus() -> None:
    kinds = {file.stem: read(file)["kind"] for file in MANIFESTS}
    expected = {"raycluster": "RayCluster", "rayservice": "RayService"}
    assert kinds == expected | {"rayjob": "RayJob", "rayjob-gpu": "RayJob"}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
class TestManifest:
    def test_fields(self, manifest: Path) -> None:
        found = read(manifest)
        assert found.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert found["apiVersion"] == "ray.io/v1"
        assert found["spec"].keys() <= SPEC[found["kind"]] | CLUSTER
        spec = cluster(manifest)
        assert {"headGroupSpec", "workerGroupSpecs"} <= spec.keys() <= CLUSTER
        assert spec["headGroupSpec"].keys() == {"rayStartParams", "template"}
        for group in spec["workerGroupSpecs"]:
            assert group.keys() == GROUP
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]

    def test_every_node_wants_the_token(self, manifest: Path) -> None:
        """Clusters use token authentication and name the Ray version, which KubeRay checks."""
        assert cluster(manifest)["authOptions"] == {"mode": "token"}
        assert cluster(manifest)["rayVersion"] == version("ray")

    def test_images_are_built_here_and_have_what_kuberay_calls(self, manifest: Path) -> None:
        (installed, *_) = arguments("RUN")
        assert " wget " in installed
        for group in groups(manifest):
            assert container(group)["image"] in ("hgpo-rllib:cpu", "hgpo-rllib:gpu")

    def test_options_of_ray_start(self, manifest: Path) -> None:
        for group in groups(manifest):
            options = [f"--{k}={v}" for k, v in group["rayStartParams"].items()]
            options = [option.replace('="', "=").removesuffix('"') for option in options]
            cli.commands["start"].make_context("start", options)
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())

    def test_rights(self, manifest: Path) -> None:
        """Pods run as the image's user, without capabilities or privilege escalation."""
        for group in groups(manifest):
            pod = group["template"]["spec"]
            assert pod["securityContext"]["runAsUser"] == 1000
            assert pod["securityContext"]["runAsNonRoot"]
            rights = container(group)["securityContext"]
            assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

    def test_volumes(self, manifest: Path) -> None:
        """Data and runs are in the claim, and Ray's object store fits /dev/shm and the memory."""
        claim = yaml.safe_load((DOCKER / "kuberay" / "storage.yaml").read_text())
        for group in groups(manifest):
            volumes = {v["name"]: v for v in group["template"]["spec"]["volumes"]}
            mounts = {m["mountPath"]: m for m in container(group)["volumeMounts"]}
            for folder in ("data", "runs"):
                mount = mounts[f"/app/{folder}"]
                assert mount["subPath"] == folder
                name = volumes[mount["name"]]["persistentVolumeClaim"]["claimName"]
                assert name == claim["metadata"]["name"]
            shm = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
            assert shm["medium"] == "Memory"
            store = int(group["rayStartParams"]["object-store-memory"]) / 2**30
            memory = gib(container(group)["resources"]["limits"]["memory"])
            assert store < gib(shm["sizeLimit"]) < memory

    def test_requests_equal_limits(self, manifest: Path) -> None:
        """Requests equal limits, as Ray counts the limits and Kubernetes reserves the requests."""
        for group in groups(manifest):
            wanted = container(group)["resources"]
            assert wanted["requests"] == wanted["limits"]


@pytest.mark.parametrize("manifest", [m for m in MANIFESTS if read(m)["kind"] == "RayJob"])
def test_a_job_has_what_its_run_needs(manifest: Path) -> None:
    """A job's nodes provide the run's resources and no extra GPU; results are in the volume."""
    config = run_config(manifest)
    assert (config.output, config.cache) == ("/app/runs", "/app/data")
    nodes = [resources(g) for g in groups(manifest) for _ in range(g.get("replicas", 1))]
    check_run(config.cluster, config.policy_server, nodes)
    needed = trial_demand(config.cluster, config.policy_server).total
    offered = {name: sum(node.get(name, 0) for node in nodes) for name in needed}
    assert offered.get("GPU", 0) == needed.get("GPU", 0)
    main_process = 1  # which reserves no CPU in a job, and has those of the head
    assert offered["CPU"] >= needed["CPU"] - main_process
    assert nodes[0]["CPU"] == 0


def test_the_examples_of_a_cluster_have_room_for_replicas() -> None:
    """The example cluster has room for a replica of the pocket example on each worker."""
    manifest = DOCKER / "kuberay" / "raycluster.yaml"
    overrides = ["policy_server.replica_resources={rollout: 1}", "policy_server.num_replicas=2"]
    config = load_config(ROOT / "tuned_examples/alfworld_pocket.yaml", overrides)
    nodes = [resources(g) for g in groups(manifest) for _ in range(g.get("replicas", 1))]
    check_run(config.cluster, config.policy_server, nodes)


def serve_config(text: str) -> dict[str, Any]:
    parsed = yaml.safe_load(text)
    ServeDeploySchema.model_validate(parsed)
    return parsed


class TestServe:
    config = serve_config((DOCKER / "serve.yaml").read_text())

    def test_the_application_is_there_and_takes_the_arguments(self) -> None:
        (application,) = self.config["applications"]
        module, _, name = application["import_path"].partition(":")
        build = getattr(importlib.import_module(module), name)
        assert build.__annotations__["arguments"] is Arguments
        Arguments.model_validate(application["args"])

    def test_arguments_are_those_of_the_command(self) -> None:
        command = get_command(app).commands["serve"]
        assert set(Arguments.model_fields) <= {option.name for option in command.params}

    def test_it_listens_on_loopback(self) -> None:
        assert self.config["http_options"]["host"] == "127.0.0.1"

    def test_the_service_deploys_the_same(self) -> None:
        """The RayService deploys the same application, with a key for clients in other pods."""
        manifest = DOCKER / "kuberay" / "rayservice.yaml"
        deployed = serve_config(read(manifest)["spec"]["serveConfigV2"])
        assert deployed["applications"] == self.config["applications"]
        for group in groups(manifest):
            (key,) = container(group)["env"]
            assert key["name"] == "HGPO_API_KEY"
            assert "secretKeyRef" in key["valueFrom"]

    def test_pods_and_replicas_scale_alike(self) -> None:
        """Pods and replicas scale within the same limits, with one replica per worker."""
        (workers,) = cluster(DOCKER / "kuberay" / "rayservice.yaml")["workerGroupSpecs"]
        (deployment,) = self.config["applications"][0]["deployments"]
        scaling = deployment["autoscaling_config"]
        assert scaling["min_replicas"] == workers["minReplicas"]
        assert scaling["max_replicas"] == workers["maxReplicas"]
        replica = RunConfig().policy_server
        assert resources(workers)["CPU"] == replica.replica_cpus
        assert scaling["target_ongoing_requests"] < replica.max_num_seqs
