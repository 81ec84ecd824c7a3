#!/usr/bin/env python3
"""Prints the table of docs/dependencies.md: what each direct dependency of ipwatch costs to compile.

    cargo build -p ipwatch --timings --target-dir /tmp/timed    # from nothing, nothing else running
    xtask/dependencies.py /tmp/timed/cargo-timings/cargo-timing.html
"""
import collections
import json
import re
import subprocess
import sys

if len(sys.argv) != 2:
    sys.exit(__doc__)

# How long each unit took. A crate has several: build scripts, and what procedural macros need on the host.
seconds = collections.Counter()
html = open(sys.argv[1], encoding="utf-8").read()
for unit in json.loads(re.search(r"const UNIT_DATA = (\[.*?\]);\n", html, re.S)[1]):
    seconds[unit["name"], unit["version"]] += unit["duration"]

command = ["cargo", "metadata", "--format-version=1", "--locked"]
command.append("--filter-platform=x86_64-unknown-linux-gnu")
metadata = json.loads(subprocess.check_output(command))
packages = {package["id"]: package for package in metadata["packages"]}
needs = {
    node["id"]: [
        dep["pkg"] for dep in node["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
    ]
    for node in metadata["resolve"]["nodes"]
}
(root,) = [id for id in needs if packages[id]["name"] == "ipwatch"]


def reached(without=None):
    seen, left = {root}, [root]
    while left:
        new = [id for id in needs[left.pop()] if id != without and id not in seen]
        seen.update(new)
        left += new
    return seen


def cost(ids):
    return sum(seconds[packages[id]["name"], packages[id]["version"]] for id in ids)


everything = reached()
rows = []
for id in needs[root]:
    alone = everything - reached(without=id)
    rows.append((cost(alone), cost([id]), len(alone) - 1, packages[id]["name"]))
print("| crate | s, with what it alone brings | s, itself | crates it alone brings |\n|---|--:|--:|--:|")
for whole, own, brings, name in sorted(rows, reverse=True):
    print(f"| {name} | {whole:.1f} | {own:.1f} | {brings} |")
print(f"\nipwatch itself: {cost([root]):.1f} s of {sum(seconds.values()):.0f} s, {len(everything)} packages")
