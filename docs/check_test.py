#!/usr/bin/env python3
"""Shows that docs/check.py can fail: a page with one fault of each kind, and what is said of it."""

import sys
import tempfile
from pathlib import Path

import check

PAGE = """# A page with faults

[a](nowhere.md) [b](README.md#nowhere) `crates/nowhere/x.rs` `clock.nowhere` `[nowhere]` `nowhere_key = true`
`make nowhere` `make lab TEST=nowhere` `cargo test -p nowhere` {word}
`timevisor nowhere` `timevisor now --nowhere`

```sh
timevisor status
```
```sh run=nowhere
sudo timevisord --nowhere
```
```sh not-run="the lab test nowhere runs it"
true
```
```rust file=clients/rust/examples/first.rs
fn nowhere() {{}}
```
```toml
[clock]
nowhere = 1
```
"""

SAID = [
    "no such file: nowhere.md",
    "no such heading: README.md#nowhere",
    "no such path: crates/nowhere/x.rs",
    "timevisord.toml has no clock.nowhere",
    "timevisord.toml has no [nowhere]",
    "timevisord.toml has no key nowhere_key",
    "make has no target nowhere",
    "there is no lab test or experiment nowhere",
    "there is no package nowhere",
    "say it in the field's usual words",
    "shell commands without run=TEST",
    "nothing runs run=nowhere",
    "is not what is in clients/rust/examples/first.rs",
]
# A row that allows too much, in a table that lacks all other rows.
ROOMS = "| crates/time | instants | estimate |\n"
SAID_OF_ROOMS = ["crates/time may import nothing by deny.toml", "the table of rooms has no crates/estimate"]
# Only where there are built programs.
SAID_OF_COMMANDS = [
    "`timevisor` has no subcommand nowhere",
    "`timevisor now` has no option --nowhere",
    "`timevisord` has no option --nowhere",
]


def main():
    checks = check.Checks(check.built_programs(None))
    with tempfile.NamedTemporaryFile("w", dir=check.ROOT / "docs", suffix=".md") as file:
        file.write(PAGE.format(word=check.WORDS[0]))
        file.flush()
        checks.page(Path(file.name))
        Path(file.name).write_text(ROOMS)
        checks.rooms(Path(file.name))
    expected = SAID + SAID_OF_ROOMS + (SAID_OF_COMMANDS if checks.programs else [])
    missing = [text for text in expected if not any(text in problem for problem in checks.problems)]
    for text in missing:
        print(f"docs/check.py does not say: {text}")
    print(f"docs/check.py: {len(expected) - len(missing)} of {len(expected)} kinds of faults are found")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
