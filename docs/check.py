#!/usr/bin/env python3
"""Checks the documentation, without dependencies: `python3 docs/check.py [--bin DIRECTORY]`.

links      every relative link of a *.md file leads to a file, and its anchor to a heading
paths      every path in code quotes that begins with a folder of the repository exists
blocks     every block of shell commands says which test runs it (run=) or why none does (not-run=)
copies     a block with file= is that file, or a part of it
commands   every `timevisor`, `timevisord` and `timevisor-guest` command uses subcommands and options that exist
           (needs built programs: --bin, TIMEVISOR_BIN, or target/debug; otherwise this is said and left out)
make       every `make TARGET` is a target of the Makefile or of packaging/*.mk; every lab test and experiment that is named exists, and
           every package of `cargo -p`
keys       every [section] and quoted section.key of the configuration is in packaging/timevisord.toml
rooms      the architecture's table has a row for each crate and folder, and allows a crate what deny.toml allows it
words      signs of translated prose do not occur
citations  every docs/PAGE.md that code, configuration or an error text names exists, and every page that a unit
           names below /usr/share/doc/timevisor
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(`{3,})(.*)$")
# What run= may name: blocks that the lab test docs-commands runs, and those of cluster-how-to.
RUNNERS = {"start", "cluster", "group"}
SHELL = {"sh", "bash", "shell", "console"}
PROGRAMS = ("timevisor-guest", "timevisor-bus", "timevisor-observe", "timevisord", "timevisor")
WORDS = [
    "anew", "whoever", "whatever it", "other than", "all the same", "of its own accord", "so long as", "so long may",
    "for so long", "is told of", "begun again anew",
]
# A folder of the repository, as the beginning of a path in code quotes.
FOLDERS = ("crates/", "clients/", "daemon/", "agent/", "cli/", "lab/", "experiments/", "benches/", "packaging/",
           "plugins/", "fuzz/", "scenarios/", "docs/", "bpf/", "observe/")
# Sections of timevisord.toml that a page may name by `section.key`.
SECTIONS = ("audit", "clock", "guests", "server", "introspection")
# Task and fleet files of `reserve plan`, introspection plugins, Cargo.toml and the like have sections, too.
OTHER_TOML = {"tcp", "hosts", "group", "task", "overhead", "dependencies", "known_failure", "limits", "estimate", "host", "oscillator",
              "limits.window", "reserve", "speed", "note", "note.fields", "point", "point.event", "task.NAME",
              "vm"}


class Block:
    """One fenced block: where, its language, its attributes, its text."""

    def __init__(self, page, line, info):
        self.page, self.line = page, line
        words = info.split()
        self.language = words[0] if words else ""
        self.attributes = dict(re.findall(r'([a-z-]+)=("[^"]*"|\S+)', info))
        self.attributes = {key: value.strip('"') for key, value in self.attributes.items()}
        self.lines = []


def pages():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout
    return sorted(ROOT / name for name in listed.split() if (ROOT / name).is_file())


def split(page):
    """A page's prose, as (line number, text), and its blocks."""
    prose, blocks, open_block, fence = [], [], None, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        match = FENCE.match(line)
        if open_block is None and match:
            fence, open_block = match[1], Block(page, number, match[2])
        elif open_block is not None and line.strip() == fence:
            blocks.append(open_block)
            open_block = None
        elif open_block is not None:
            open_block.lines.append(line)
        else:
            prose.append((number, line))
    return prose, blocks


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    found = {}
    result = set()
    for _, line in split(page)[0]:
        match = re.match(r"#{1,6} +(.*)", line)
        if not match:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1].strip())
        text = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = found.get(text, 0)
        found[text] = count + 1
        result.add(f"{text}-{count}" if count else text)
    return result


def bare(text):
    """Without indentation and empty lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


class Checks:
    def __init__(self, programs):
        self.problems = []
        self.programs = programs
        self.help_texts = {}
        self.counted = {name: 0 for name in ("links", "paths", "blocks", "copies", "commands", "make", "keys", "citations", "rooms")}
        self.toml = (ROOT / "packaging/timevisord.toml").read_text()
        sources = subprocess.run(["git", "grep", "-hoE", '"[a-z0-9][a-z0-9.-]+"', "--", "lab", "experiments"], cwd=ROOT,
                                 capture_output=True, text=True, check=False).stdout
        self.lab_names = {name.strip('"') for name in sources.split()}
        manifests = [path for path in ROOT.glob("**/Cargo.toml") if "target" not in path.relative_to(ROOT).parts]
        self.packages = {name for path in manifests for name in re.findall(r'^name = "([^"]+)"', path.read_text(), re.M)}
        rules = [ROOT / "Makefile", *sorted((ROOT / "packaging").glob("*.mk"))]
        text = "\n".join(path.read_text() for path in rules)
        self.makefile = {
            name
            for line in re.findall(r"^([a-z][a-z -]*):", text, re.M)
            for name in line.split()
        }

    def problem(self, page, line, text):
        self.problems.append(f"{page.relative_to(ROOT)}:{line}: {text}")

    def page(self, page):
        prose, blocks = split(page)
        self.links(page, prose)
        self.paths(page, prose)
        self.quoted_commands(page, prose)
        if page.parent == ROOT or (ROOT / "docs") in page.parents:
            self.keys(page, prose)
        self.words(page, prose)
        for block in blocks:
            self.block(block)

    def links(self, page, prose):
        for number, line in prose:
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if "://" in target or target.startswith("mailto:"):
                    continue
                self.counted["links"] += 1
                path, _, anchor = target.partition("#")
                to = (page.parent / path).resolve() if path else page
                if not to.exists():
                    self.problem(page, number, f"no such file: {target}")
                elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                    self.problem(page, number, f"no such heading: {target}")

    def paths(self, page, prose):
        for number, line in prose:
            for quoted in re.findall(r"`([^`\s]+)`", line):
                if quoted.startswith(FOLDERS) and not re.search(r"[*<>{}$]|NAME", quoted):
                    self.counted["paths"] += 1
                    if not (ROOT / quoted).exists():
                        self.problem(page, number, f"no such path: {quoted}")

    def block(self, block):
        text = "\n".join(block.lines)
        if "file" in block.attributes:
            file = ROOT / block.attributes["file"]
            if file.exists():
                self.counted["copies"] += 1
                if bare(text) not in bare(file.read_text()):
                    self.problem(block.page, block.line, f"is not what is in {block.attributes['file']}")
            elif block.language != "toml":
                self.problem(block.page, block.line, f"no such file: {block.attributes['file']}")
        if block.language == "toml" and not block.attributes.get("file", "").startswith("plugins/"):
            self.toml_block(block)
        has_command = re.search(r"^\s*(\$ |sudo |make |cargo |timevisor|[a-z]+ .*timevisor)", text, re.M)
        if block.language in SHELL or (not block.language and has_command):
            self.counted["blocks"] += 1
            if not block.attributes.keys() & {"run", "not-run"}:
                self.problem(block.page, block.line, 'shell commands without run=TEST or not-run="why not"')
            if block.attributes.get("run", "start") not in RUNNERS:
                self.problem(block.page, block.line, f"nothing runs run={block.attributes['run']}")
            for names in re.findall(r"the lab tests? ((?:[a-z0-9.-]+(?:, | and )?)+?) (?:runs?|does|do)\b",
                                    block.attributes.get("not-run", "")):
                for name in re.split(r", | and ", names):
                    self.lab_name(block.page, block.line, name)
            for number, line in enumerate(block.lines, block.line + 1):
                self.command_line(block.page, number, line)

    def toml_block(self, block):
        """A part of timevisord.toml: its sections and their keys. Other files' sections are left out."""
        section = None
        for number, line in enumerate(block.lines, block.line + 1):
            if header := re.match(r"#? ?\[{1,2}([\w.]+)\]{1,2}", line):
                section = re.sub(r"\.web\b", ".NAME", header[1])
            elif section and section not in OTHER_TOML and (key := re.match(r"(\w+)\s*=", line)):
                self.counted["keys"] += 1
                if not self.has_key(section, key[1]):
                    self.problem(block.page, number, f"timevisord.toml has no {section}.{key[1]}")

    def lab_name(self, page, number, name):
        if name not in self.lab_names and name != "list":
            self.problem(page, number, f"there is no lab test or experiment {name}")

    def help_text(self, words):
        key = tuple(words)
        if key not in self.help_texts:
            program = self.programs / words[0]
            answer = subprocess.run([program, *words[1:], "--help"], capture_output=True, text=True, check=False)
            self.help_texts[key] = answer.stdout if answer.returncode == 0 else ""
        return self.help_texts[key]

    def command_line(self, page, number, line):
        line = line.split(" #")[0].removeprefix("$ ")
        for target in re.findall(r"(?:^|[;&]\s*|\| )make ([a-z][a-z-]*)", line):
            self.counted["make"] += 1
            if target not in self.makefile:
                self.problem(page, number, f"make has no target {target}")
        if "cargo " in line:
            for name in re.findall(r" -p ([a-z0-9-]+)", line):
                if name not in self.packages:
                    self.problem(page, number, f"there is no package {name}")
        for name in re.findall(r"make (?:lab TEST|experiment NAME)=([a-z0-9.-]+)", line):
            self.lab_name(page, number, name)
        found = re.search(r"(?:^|[\s/])(timevisor-guest|timevisord|timevisor)((?: .*)?)$", line.strip())
        if found:
            self.command(page, number, found[1], found[2].split("|")[0].split("&")[0].split())

    def command(self, page, number, program, words):
        """Follows subcommands as long as the help text lists them; then every option has to be there."""
        if self.programs is None:
            return
        self.counted["commands"] += 1
        path, rest = [program], list(words)
        while rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            section = self.help_text(path).partition("Commands:\n")[2].partition("\n\n")[0]
            if not re.search(rf"^  {re.escape(rest[0])}\b", section, re.M):
                if section and len(path) < 3 and not re.search(r"^Usage:.* \[?<(?!COMMAND)", self.help_text(path), re.M):
                    self.problem(page, number, f"`{' '.join(path)}` has no subcommand {rest[0]}")
                break
            path.append(rest.pop(0))
        known = self.help_text(path)
        for option in (word.split("=")[0] for word in rest if word.startswith("--")):
            if not re.search(rf"(?:^|\s){re.escape(option)}(?![\w-])", known):
                self.problem(page, number, f"`{' '.join(path)}` has no option {option}")

    def quoted_commands(self, page, prose):
        for number, line in prose:
            for quoted in re.findall(r"`((?:timevisor|timevisord|timevisor-guest|make|cargo)(?: [^`]*)?)`", line):
                self.command_line(page, number, quoted)

    def has_key(self, section, key):
        """Whether `section` has `key`, also where it is commented out."""
        name, inside = re.escape(section), False
        for line in self.toml.splitlines():
            line = line.lstrip("# ")
            if header := re.match(r"\[{1,2}([\w.]+)\]{1,2}\s*$", line):
                inside = header[1] == section
            elif inside and re.match(rf"{re.escape(key)}\s*=", line):
                return True
        return bool(re.search(rf"\[{{1,2}}{name}\.{re.escape(key)}\b", self.toml))

    def keys(self, page, prose):
        for number, line in prose:
            for section, key in re.findall(rf"`({'|'.join(SECTIONS)})\.([a-z_]+)(?: = [^`]*)?`", line):
                self.counted["keys"] += 1
                if not self.has_key(section, key):
                    self.problem(page, number, f"timevisord.toml has no {section}.{key}")
            for key in re.findall(r'`([a-z][a-z_]+) = (?:true|false|"[^"`]*"|\d+)`', line):
                self.counted["keys"] += 1
                if not re.search(rf"^[# ]*{key}\s*=", self.toml, re.M):
                    self.problem(page, number, f"timevisord.toml has no key {key}")
            for header in re.findall(r"`\[{1,2}([a-z][\w.]*)\]{1,2}[^`]*`", line):
                name = re.sub(r"\.(?:web|NAME)\b", ".NAME", header)
                if name in OTHER_TOML:
                    continue
                self.counted["keys"] += 1
                if not re.search(rf"\[{{1,2}}{re.escape(name)}\]", self.toml):
                    self.problem(page, number, f"timevisord.toml has no [{name}]")

    def words(self, page, prose):
        for number, line in prose:
            bare = re.sub(r"`[^`]*`", "", line)
            for word in WORDS:
                if re.search(rf"\b{word}\b", bare, re.I):
                    self.problem(page, number, f'"{word}": say it in the field\'s usual words')

    def citations(self):
        listed = subprocess.run(["git", "grep", "-InoE", r"(docs|/usr/share/doc/timevisor(-[a-z]+)?)/[A-Za-z0-9_/-]+\.md", "--",
                                 ":!*.md", ":!docs"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
        for hit in listed.splitlines():
            name, number, cited = hit.split(":", 2)
            cited = re.sub(r"^/usr/share/doc/timevisor(-[a-z]+)?", "docs", cited)
            self.counted["citations"] += 1
            if not (ROOT / cited).is_file():
                self.problem(ROOT / name, number, f"no such page: {cited}")


    def rooms(self, page=ROOT / "docs/explanation/architecture.md"):
        """The table of rooms has a row for each crate and each folder with code. A crate's row allows what deny.toml does."""
        deny, rows = (ROOT / "deny.toml").read_text(), {}
        for number, line in split(page)[0]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("|") and len(cells) == 3 and (ROOT / cells[0]).is_dir():
                rows[cells[0]] = (number, cells[2])
        allowed = {}
        for crate, wrappers in re.findall(r'crate = "timevisor-([a-z-]+)", wrappers = \[([^\]]*)\]', deny):
            for room in re.findall(r'"timevisor-([a-z-]+)"', wrappers):
                allowed.setdefault(room, set()).add(crate)
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        crates = {"/".join(name.split("/")[:2]) for name in listed if name.startswith("crates/")}
        folders = {name.split("/")[0] for name in listed if "/" in name and not name.startswith(".")}
        for room in sorted(crates | folders - {"crates", "docs"}):
            self.counted["rooms"] += 1
            if room not in rows:
                self.problem(page, 1, f"the table of rooms has no {room}")
                continue
            number, cell = rows[room]
            said = set(filter(None, re.split(r", *", cell)))
            wanted = allowed.get(room.removeprefix("crates/"), set())
            if room in crates and said - {"core"} != wanted:
                self.problem(page, number, f"{room} may import {', '.join(sorted(wanted)) or 'nothing'} by deny.toml")


def built_programs(given):
    for place in filter(None, [given, os.environ.get("TIMEVISOR_BIN"), ROOT / "target/debug"]):
        if all((Path(place) / program).exists() for program in PROGRAMS):
            return Path(place)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="the folder with timevisor, timevisord, timevisor-guest, timevisor-bus and timevisor-observe")
    checks = Checks(built_programs(parser.parse_args().bin))
    found = pages()
    for page in found:
        checks.page(page)
    checks.citations()
    checks.rooms()
    for problem in checks.problems:
        print(problem)
    if checks.programs is None:
        print("not checked: commands, because no built programs were found (cargo build, or --bin)")
    counts = ", ".join(f"{count} {name}" for name, count in checks.counted.items())
    print(f"{len(found)} pages: {counts}; {len(checks.problems)} problems")
    return 1 if checks.problems else 0


if __name__ == "__main__":
    sys.exit(main())
