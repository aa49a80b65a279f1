"""Writes target/berth.cdx.json: every crate in the binary, as CycloneDX 1.6 (`make sbom`).

cargo says what is built (`cargo metadata`, resolved for one target); what only builds or tests is left
out. The same sources give the same text: no time and no random number.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")


def said(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def in_binary(root, nodes):
    """The ids of what is linked: along normal dependencies, and not through macros."""
    found, ahead = set(), [root]
    while ahead:
        at = ahead.pop()
        if at in found:
            continue
        found.add(at)
        for dep in nodes[at]["deps"]:
            if any(kind["kind"] is None for kind in dep["dep_kinds"]):
                ahead.append(dep["pkg"])
    return found


def checksums():
    """By name and version, as Cargo.lock has them."""
    import tomllib

    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(it["name"], it["version"]): it.get("checksum") for it in lock["package"]}


def component(package, sums):
    name, version = package["name"], package["version"]
    licence = (package["license"] or "").replace("/", " OR ")
    checksum = sums.get((name, version))
    purl = PackageURL("cargo", None, name, version)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
    )


def main():
    host = said("rustc", "--print", "host-tuple").strip()
    metadata = said(CARGO, "metadata", "--locked", "--format-version", "1", "--filter-platform", host)
    metadata = json.loads(metadata)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    macros = {
        id
        for id, package in packages.items()
        if any("proc-macro" in target["kind"] for target in package["targets"])
    }
    linked = {id: node for id, node in nodes.items() if id not in macros}
    for node in linked.values():
        node["deps"] = [dep for dep in node["deps"] if dep["pkg"] not in macros]
    ids = sorted(in_binary(root, linked), key=lambda id: (packages[id]["name"], packages[id]["version"]))

    sums = checksums()
    components = {id: component(packages[id], sums) for id in ids}
    components[root].type = ComponentType.APPLICATION
    lock = (ROOT / "Cargo.lock").read_text()
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"{host}\n{lock}"))
    bom.metadata.component = components[root]
    for id in ids:
        if id != root:
            bom.components.add(components[id])
        needs = [components[dep["pkg"]] for dep in linked[id]["deps"] if dep["pkg"] in components]
        bom.register_dependency(components[id], needs)

    document = json.loads(JsonV1Dot6(bom).output_as_string())
    document["metadata"].pop("timestamp", None)
    out = ROOT / "target" / "berth.cdx.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    unlicensed = [packages[id]["name"] for id in ids if not packages[id]["license"]]
    print(f"{out.relative_to(ROOT)}: {len(ids) - 1} crates for {host}")
    if unlicensed or len(ids) < 100:
        sys.exit(f"no licence: {unlicensed}; {len(ids)} crates")


main()
