"""The files in docker/: each checked by a linter of its kind, and against what `armbuild docker` makes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from armbuild.image import config, content, root
from armbuild.image.base import Foundation

DOCKER = Path(__file__).parents[2] / "docker"
CHART = DOCKER / "helm/armllm"
KUBERAY = DOCKER / "kubernetes/ray/kuberay.yaml"
KINDS = {"deployment": "Deployment", "service": "Service", "hpa": "HorizontalPodAutoscaler"}


def linter(name, *arguments):
    program = Path(sys.executable).with_name(name)
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def passes(done):
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_has_nothing_to_say_about_the_dockerfile():
    passes(linter("hadolint", DOCKER / "Dockerfile"))


def test_the_compose_file_follows_the_compose_specification():
    passes(linter("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml"))


@pytest.mark.parametrize(
    ("variables", "served"),
    [
        ({"MODEL": "qwen3-8b"}, "/models/qwen3-8b"),
        ({"HUB_MODEL": "org/name"}, "org/name"),
        ({"HUB_MODEL": "org/name", "MODEL": "qwen3-8b"}, "org/name"),
        ({"HUB_MODEL": "", "MODEL": "qwen3-8b"}, "/models/qwen3-8b"),
    ],
)
def test_compose_serves_the_model_that_the_variables_name(variables, served):
    command = [sys.executable, "-m", "podman_compose", "-f", DOCKER / "compose.yaml", "config"]
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    passes(done)
    service = yaml.safe_load(done.stdout)["services"]["armllm"]
    assert service["command"] == [served, "--dtype", "auto"]
    hub = next(volume for volume in service["volumes"] if volume["source"] == "hub")
    assert (hub["type"], hub["target"]) == ("volume", f"/{root.HUB}")


def test_kubernetes_takes_the_manifests(tmp_path):
    manifests = set((DOCKER / "kubernetes").rglob("*.yaml")) - {KUBERAY}
    passes(linter("kubernetes-validate", "--strict", *sorted(manifests)))
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        (DOCKER / "kubernetes/deployment.yaml").read_text().replace("replicas: 1", "replicas: one")
    )
    assert linter("kubernetes-validate", "--strict", broken).returncode != 0, (
        "the linter must be able to say no"
    )


# Helm is written in Go, whose runtime takes a process's signals: it has one of its own
HELM = """
import json, sys
import helm_python, yaml
folder, name = sys.argv[1:]
values = json.load(sys.stdin)
try:
    errors = helm_python.lint(folder, values, strict=True)["errors"]
    with helm_python.Chart.load(folder) as chart:
        with open(f"{folder}/values.yaml") as usual:
            chart.validate_schema({**yaml.safe_load(usual), **values})
        documents = chart.render(values, name=name)
except helm_python.HelmError as error:
    sys.exit(f"refused: {error}")
json.dump([errors, documents], sys.stdout)
"""


def helm(values, name="r"):
    command = [sys.executable, "-c", HELM, CHART, name]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)


def rendered(values, name="r"):
    """The chart's documents that are not empty, by their names."""
    done = helm(values, name)
    passes(done)
    errors, documents = json.loads(done.stdout)
    assert not errors
    return {Path(path).stem: text for path, text in documents.items() if text.strip()}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "autoscaling": {"enabled": True},
            "numa": False,
            "kvCacheSpace": 2.5,
            "args": ["--dtype", "bfloat16"],
        },
        {
            "model": {"path": "", "name": "", "existingClaim": ""},
            "resources": {},
            "env": [{"name": "VLLM_API_KEY", "value": "k"}],
        },
        {"model": {"existingClaim": "123"}},
        {"model": {"path": "org/name"}, "hub": {"existingClaim": "cache", "tokenSecret": "s"}},
        {"tolerations": [{"key": "arm", "operator": "Exists"}], "imagePullSecrets": [{"name": "s"}]},
    ],
)
def test_the_chart_renders_to_what_kubernetes_takes(tmp_path, values):
    documents = rendered(values)
    documents.pop("NOTES", None)
    for name, text in documents.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        assert yaml.safe_load(text)["kind"] == KINDS[name]
    assert ("hpa" in documents) == bool(values.get("autoscaling"))
    passes(linter("kubernetes-validate", "--strict", *sorted(tmp_path.glob("*.yaml"))))


# of the types in KubeRay's ray-operator/apis/ray/v1/raycluster_types.go
RAY_FIELDS = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"rayStartParams", "template"}
WORKER_FIELDS = GROUP_FIELDS | {"groupName", "replicas", "minReplicas", "maxReplicas"}


def check_ray(text, folder):
    """Whether the operator and Kubernetes take a RayCluster and what comes with it; returns all documents.

    The validator knows no RayCluster, whose pods it sees as those of Deployments.
    """
    documents = list(yaml.safe_load_all(text))
    (cluster,) = [one for one in documents if one["kind"] == "RayCluster"]
    assert cluster["apiVersion"] == "ray.io/v1"
    spec = cluster["spec"]
    assert set(spec) == RAY_FIELDS
    assert set(spec["headGroupSpec"]) == GROUP_FIELDS
    (workers,) = spec["workerGroupSpecs"]
    assert set(workers) == WORKER_FIELDS
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    checked = [one for one in documents if one is not cluster]
    for group in (spec["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        labels = {"app": "a"}
        metadata = group["template"].get("metadata", {}) | {"labels": labels}
        checked.append(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "a"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": group["template"] | {"metadata": metadata},
                },
            }
        )
    (folder / "checked.yaml").write_text(yaml.safe_dump_all(checked))
    passes(linter("kubernetes-validate", "--strict", folder / "checked.yaml"))
    return documents


RAY = {"ray": {"enabled": True}}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"numa": False, "kvCacheSpace": 2.5, "args": ["-pp", "2"], "resources": {}, "replicaCount": 0},
        {"model": {"path": "org/name", "name": "", "existingClaim": ""}, "hub": {"existingClaim": "cache"}},
        {"tolerations": [{"key": "arm", "operator": "Exists"}], "imagePullSecrets": [{"name": "s"}]},
    ],
)
def test_the_chart_renders_a_ray_cluster(tmp_path, values):
    found = rendered(values | RAY)
    assert set(found) == {"NOTES", "ray", "service"}
    cluster = check_ray(f"{found['ray']}\n---\n{found['service']}", tmp_path)[0]
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    flags = ["--distributed-executor-backend", "ray", *values.get("args", [])]
    assert head["args"][-len(flags) :] == flags


def test_the_ray_cluster_is_the_chart_s_and_its_service_finds_the_head(tmp_path):
    image = {"repository": "localhost/armllm-ray", "tag": "latest"}
    found = rendered(RAY | {"replicaCount": 2, "image": image}, name="armllm")
    documents = [document for name in ("ray", "service") for document in yaml.safe_load_all(found[name])]
    plain = check_ray(KUBERAY.read_text(), tmp_path)
    for one in (*documents, *plain):
        del one["metadata"]["labels"]
    del documents[-1]["spec"]["type"]  # the default
    assert plain == documents
    # what the operator calls pods and the head's service, from which the names above follow
    cluster, name = plain[0], plain[0]["metadata"]["name"]
    assert plain[-1]["spec"]["selector"] == {"ray.io/cluster": name, "ray.io/node-type": "head"}
    worker = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    assert f"--address={name}-head-svc:6379" in worker["args"][0]
    assert cluster["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"


def test_ray_start_knows_the_flags_of_the_manifests():
    help_ = linter("ray", "start", "--help").stdout
    for path in (KUBERAY, KUBERAY.with_name("cluster.yaml")):
        for command in re.findall(r"ray start ([^&\"\]]+)", path.read_text().replace("\n", " ")):
            flags = re.findall(r"--([a-z-]+)", command.partition(" ports:")[0])
            assert flags
            assert not [flag for flag in flags if f"--{flag} " not in help_.replace("\n", " ")]


@pytest.mark.parametrize(
    "values",
    [
        {"threadsBind": "some"},
        {"numa": "yes"},
        {"replicas": 2},
        {"kvCacheSpace": 0},
        {"ray": {"enabled": "yes"}},
        {"ray": {"version": "latest"}},
        RAY | {"autoscaling": {"enabled": True}},
    ],
)
def test_values_that_the_chart_does_not_know_are_refused(values):
    done = helm(values)
    assert done.returncode == 1
    assert "refused: " in done.stderr


def test_the_chart_and_the_manifests_confine_the_engine_alike():
    plain = yaml.safe_load((DOCKER / "kubernetes/deployment.yaml").read_text())
    chart = yaml.safe_load(rendered({})["deployment"])
    for document in (plain, chart):
        pod = document["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert mounts == ["/models", f"/{root.HUB}", "/tmp"]  # noqa: S108
    plain, chart = (document["spec"]["template"]["spec"] for document in (plain, chart))
    assert plain["containers"][0].pop("image").startswith("localhost/armllm:")
    assert chart["containers"][0].pop("image").startswith("localhost/armllm:")
    assert chart["containers"][0].pop("imagePullPolicy") == "IfNotPresent"
    assert plain == chart
    assert "preStop" in plain["containers"][0]["lifecycle"], "else a Service asks a server that has ended"


def test_the_dockerfile_says_what_the_oci_builder_writes():
    foundation = Foundation(
        layers=(),
        content=content.Content(),
        python="/usr/bin/python3",
        site="",
        environment={},
        suite="bookworm",
    )
    document = config.document((), foundation, architecture="arm64", created="", labels={}, model=None)[
        "config"
    ]
    text = (DOCKER / "Dockerfile").read_text().rpartition("\nFROM ")[2].replace("\\\n", " ")
    lines = {line.split()[0]: line.partition(" ")[2].strip() for line in text.splitlines() if line.strip()}
    assert shlex.split(lines["ENV"]) == document["Env"]
    assert json.loads(lines["ENTRYPOINT"]) == document["Entrypoint"]
    assert lines["USER"] == document["User"]
    assert lines["STOPSIGNAL"] == document["StopSignal"]
    health = document["Healthcheck"]
    assert json.loads(lines["HEALTHCHECK"].partition("CMD ")[2]) == health["Test"][1:]
    seconds = dict(re.findall(r"--([a-z-]+)=(\d+)s", lines["HEALTHCHECK"]))
    assert {name: int(value) * config.SECOND for name, value in seconds.items()} == {
        "interval": health["Interval"], "timeout": health["Timeout"], "start-period": health["StartPeriod"],
    }  # fmt: skip


def test_the_dockerfile_takes_vllms_build_arguments_and_emulates_nothing():
    text = (DOCKER / "Dockerfile").read_text()
    build, _, final = text.rpartition("\nFROM ")
    stage = (DOCKER / "build_stage.sh").read_text()
    assert "RUN bash docker/build_stage.sh" in build
    assert "FROM --platform=$BUILDPLATFORM" in build
    for argument in ("VLLM_CPU_ARM_BF16", "max_jobs"):
        assert re.search(rf"^ARG {argument}=", build, re.MULTILINE)
        assert f"${{{argument}" in stage
    assert final.startswith("scratch AS vllm-openai\n")
    for name in ("Dockerfile", "Dockerfile.dockerignore"):  # the names in vLLM's guide
        other = DOCKER / name.replace("Dockerfile", "Dockerfile.cpu")
        assert other.read_text() == (DOCKER / name).read_text()
    assert not re.search(r"^RUN ", final, re.MULTILINE), "a RUN in the target's stage would be emulated"
