#!/usr/bin/env python3
"""What the shipped programs are made of, as CycloneDX 1.5 JSON: every crate from Cargo.lock that cargo links into them.

sbom.py write FILE     writes it; the same sources give the same bytes
sbom.py check FILE     fails unless FILE has the form that CycloneDX 1.5 asks of what is written here, and names every crate
sbom.py msrv           fails unless every crate builds with the Rust that Cargo.toml states, as far as crates say so

Build tools and tests are left out: only what is linked is shipped. Licences are those that crates state (deny.toml allows them).
"""

import datetime
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The packages' programs and libraries, by crate.
SHIPPED = ("timevisor", "timevisord", "timevisor-guest", "timevisor-bus", "timevisor-c", "timevisor-python")
TARGET = "x86_64-unknown-linux-gnu"


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(data):
    """The ids of all crates that the shipped ones link, and each one's own dependencies."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    members = set(data["workspace_members"])
    queue = [i for i in members if packages[i]["name"] in SHIPPED]
    if len(queue) != len(SHIPPED):
        sys.exit(f"sbom.py: the workspace has not all of {', '.join(SHIPPED)}")
    found = {}
    while queue:
        current = queue.pop()
        if current in found:
            continue
        normal = [d["pkg"] for d in nodes[current]["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
        found[current] = sorted(normal)
        queue += normal
    return packages, found


def checksums():
    """SHA-256 by name and version, as Cargo.lock pins them."""
    text = (ROOT / "Cargo.lock").read_text()
    found = {}
    for entry in text.split("[[package]]")[1:]:
        fields = dict(re.findall(r'^(\w+) = "(.*)"$', entry, re.M))
        if "checksum" in fields:
            found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def document():
    data = metadata()
    packages, found = linked(data)
    sums = checksums()
    components = []
    for identity in sorted(found, key=lambda i: (packages[i]["name"], packages[i]["version"])):
        package = packages[identity]
        component = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"],
                     "purl": purl(package)}
        if package.get("license"):
            # Old crates write "MIT/Apache-2.0" for a choice.
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    dependencies = [{"ref": purl(packages[i]), "dependsOn": sorted({purl(packages[d]) for d in found[i]})}
                    for i in sorted(found, key=lambda i: purl(packages[i]))]
    version = next(packages[i]["version"] for i in found if packages[i]["name"] == "timevisor")
    time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    own = {"type": "application", "bom-ref": "timevisor-packages", "name": "timevisor-packages", "version": version}
    programs = sorted(purl(packages[i]) for i in found if packages[i]["name"] in SHIPPED)
    dependencies.append({"ref": "timevisor-packages", "dependsOn": programs})
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([components, dependencies], sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
            "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": own},
            "components": components, "dependencies": dependencies}


def check(bom):
    """Problems of a document, by what the CycloneDX 1.5 schema asks of the fields that are used here."""
    problems = []

    def need(holds, text):
        if not holds:
            problems.append(text)

    need(bom.get("bomFormat") == "CycloneDX" and bom.get("specVersion") == "1.5", "it is no CycloneDX 1.5")
    serial = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    need(re.fullmatch(serial, str(bom.get("serialNumber"))), "serialNumber is no URN of a UUID")
    need(isinstance(bom.get("version"), int) and bom["version"] >= 1, "version is no positive number")
    need(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", bom.get("metadata", {}).get("timestamp", "")), "no timestamp")
    references = [bom.get("metadata", {}).get("component", {}).get("bom-ref")]
    for component in bom.get("components", []):
        name = component.get("name")
        references.append(component.get("bom-ref"))
        need(component.get("type") in ("library", "application"), f"{name}: type")
        need(isinstance(name, str) and name, "a component without a name")
        need(set(component) <= {"type", "bom-ref", "name", "version", "purl", "licenses", "hashes"}, f"{name}: unknown fields")
        need(str(component.get("purl")).startswith("pkg:cargo/"), f"{name}: purl")
        for entry in component.get("hashes", []):
            need(entry.get("alg") == "SHA-256" and re.fullmatch("[0-9a-f]{64}", entry.get("content", "")), f"{name}: hash")
        for entry in component.get("licenses", []):
            need(re.fullmatch(r"[A-Za-z0-9.+() -]+", entry.get("expression", "")), f"{name}: license expression")
    need(len(references) == len(set(references)), "a bom-ref is there twice")
    for entry in bom.get("dependencies", []):
        for reference in [entry.get("ref"), *entry.get("dependsOn", [])]:
            need(reference in references, f"{reference} is no component")
    return problems


def check_file(path):
    bom = json.loads(Path(path).read_text())
    problems = check(bom)
    named = {(c["name"], c["version"]) for c in bom.get("components", [])}
    packages, found = linked(metadata())
    for identity in found:
        package = packages[identity]
        if (package["name"], package["version"]) not in named:
            problems.append(f"{package['name']} {package['version']} is linked and not listed")
        external = package["source"] is not None
        entry = next((c for c in bom["components"] if (c["name"], c["version"]) == (package["name"], package["version"])), {})
        if external and not (entry.get("hashes") and entry.get("licenses")):
            problems.append(f"{package['name']}: no checksum or licence")
    return problems, len(found)


def number(text):
    return tuple(int(part) for part in (text.split(".") + ["0", "0"])[:3])


def msrv():
    stated = re.search(r'^rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    problems, said = [], 0
    readme = (ROOT / "README.md").read_text()
    if f"Rust {stated} or newer" not in readme:
        problems.append(f"README.md does not say: Rust {stated} or newer")
    data = metadata()
    for package in data["packages"]:
        needs = package.get("rust_version")
        # The page's crates build with less, for programs that link them alone.
        if package["source"] is None and (needs is None or number(needs) > number(stated)):
            problems.append(f"{package['name']} states Rust {needs}, the workspace {stated}")
        said += needs is not None
        if needs is not None and number(needs) > number(stated):
            problems.append(f"{package['name']} {package['version']} needs Rust {needs}, newer than {stated}")
    return problems, stated, said


def main():
    match sys.argv[1:]:
        case ["write", path]:
            Path(path).write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n")
            return []
        case ["check", path]:
            problems, count = check_file(path)
            print(f"{path}: {count} crates")
            return problems
        case ["msrv"]:
            problems, stated, said = msrv()
            print(f"Rust {stated}: {said} crates state what they need")
            return problems
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    found = main()
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)
