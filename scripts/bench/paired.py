"""What the comparisons share: our benches and their Python peers as programs that take turns on the same processors, and the record
of a comparison: `docs/benchmarks/NAME.json` with every raw value, and `NAME.md` made of it."""

import argparse
import importlib
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/benchmarks"
# Where a smoke run's results go unless told: they are no figures.
QUICK = ROOT / "target/bench-quick"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def arguments(about: str, peer: str | None, words: int | str, quick: dict, **own) -> argparse.Namespace:
    """The command line of a comparison: `--quick`, `--out`, `--peer-only`, its own options with their defaults (`quick` has those of a smoke
    run), and `--peer` with so many words, by which a script starts itself as the peer, where there is one. A default that is a tuple takes a list."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in own.items():
        many = isinstance(default, tuple)
        kind = type(default[0]) if many else type(default)
        text = f"default {' '.join(map(str, default)) if many else default}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, nargs="+" if many else None, help=text)
    parser.add_argument("--quick", action="store_true", help="a smoke run: tiny sizes, no figures; into target/bench-quick unless --out is given")
    parser.add_argument("--out", type=Path, help="folder of the result (docs/benchmarks)")
    if peer:
        parser.add_argument("--peer-only", action="store_true", help=f"measure {peer} alone; leaves no result")
        parser.add_argument("--peer", nargs=words, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name, default in (own | (quick if args.quick else {})).items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    args.out = args.out or (QUICK if args.quick else RESULTS)
    return args


def fail(what: str) -> None:
    """Ends the comparison with what is missing and what to do."""
    sys.exit(f"error: {what}")


def data(name: str, file: str) -> Path:
    """The folder of a data set, which has to have this file."""
    folder = ROOT / "data" / name
    if not (folder / file).is_file():
        fail(f"data/{name}/{file} is not there; fetch it with: scripts/fetch_data.py {name}")
    return folder


def programs(args: argparse.Namespace, ours: str, peer: str, script: str) -> dict[str, list[str]]:
    """What takes turns, by name: our bench of this name, unless the peer is measured alone, and the script itself as the peer."""
    peers = {peer: [sys.executable, script, "--peer"]}
    return peers if args.peer_only else {"ours": [bench_binary(ours)], **peers}


def cores() -> list[int]:
    """The processors that this process may use."""
    return sorted(os.sched_getaffinity(0))


def thread_counts() -> list[int]:
    """All there are, and one."""
    return sorted({1, len(cores())}, reverse=True)


def need(module: str, requirement: str, dependencies: bool = True) -> None:
    """Installs a Python package where it is missing, and says so; without its dependencies where they would change what is there."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        print(f"installing {requirement} into .venv", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        done = subprocess.run(command if dependencies else [*command, "--no-deps"])
        if done.returncode != 0:
            fail(f"{requirement} could not be installed, see above; this comparison needs it")
        importlib.invalidate_caches()
        importlib.import_module(module)


def cargo(kind: str, name: str) -> str:
    """Builds one of our benches or binaries; its path."""
    command = ["cargo", "build", "--release", f"--{kind}", name, "--message-format=json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode != 0:
        fail(f"{' '.join(command[:-1])} failed, see above; scripts/setup.sh has to be run once")
    artifacts = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    found = (a for a in artifacts if a.get("target", {}).get("kind") == [kind] and a["target"]["name"] == name)
    return next(a["executable"] for a in found if a.get("executable"))


def bench_binary(name: str) -> str:
    """Builds one of our benches; its path."""
    return cargo("bench", name)


def environment(threads: int) -> dict[str, str]:
    """The same for both sides: so many threads, which do not spin while they wait."""
    return os.environ | dict.fromkeys(THREADS, str(threads)) | {"OMP_WAIT_POLICY": "passive"}


def started(command: list, threads: int, **options) -> subprocess.Popen:
    """A program on the first `threads` processors with as many threads, in a process group of its own."""
    allowed = cores()[:threads]
    return subprocess.Popen(
        list(map(str, command)),
        text=True,
        env=environment(threads),
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        **options,
    )


def ended(process: subprocess.Popen) -> None:
    """Ends a program that was `started`, with what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def measure(command: list, threads: int) -> dict:
    """Runs a program to its end; the JSON object that it prints last."""
    process = started(command, threads, stdout=subprocess.PIPE)
    try:
        text, _ = process.communicate()
    except BaseException:
        ended(process)
        raise
    if process.returncode != 0:
        fail(f"{Path(command[0]).name} {' '.join(map(str, command[1:]))} ended with {process.returncode}")
    return json.loads(text.splitlines()[-1])


class Served:
    """A program that answers each line of its input by a line."""

    def __init__(self, command: list, threads: int):
        self.command, self.process = command, started(command, threads, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line: str = "") -> float:
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            ended(self.process)
            fail(f"{' '.join(map(str, self.command))} ended without an answer ({self.process.returncode})")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ended(self.process)


def in_turns(commands: dict[str, list], threads: int, turns: int) -> dict[str, list[float]]:
    """Seconds of `turns` rounds of programs that answer lines, after one that warms up; in each round all have their turn."""
    served = {}
    try:
        for name, command in commands.items():
            served[name] = Served(command, threads)
        rounds = [{name: program.ask() for name, program in served.items()} for _ in range(turns + 1)][1:]
    finally:
        for program in served.values():
            ended(program.process)
    return {name: [row[name] for row in rounds] for name in commands}


def serve(round_) -> None:
    """What a peer does: seconds of one round for each line of its input."""
    for _ in sys.stdin:
        start = time.perf_counter()
        round_()
        print(time.perf_counter() - start, flush=True)


def versions(*packages: str) -> dict[str, str]:
    return {p: version(p) for p in packages}


def processor() -> dict:
    """Its name and what of its vector instructions matters here."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    value = lambda key: next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "unknown")
    flags = value("flags").split()
    return {"processor": value("model name"), "instructions": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]}


def machine() -> dict:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    system = platform.freedesktop_os_release()["PRETTY_NAME"] if Path("/etc/os-release").exists() else platform.system()
    return processor() | {"cores_used": len(cores()), "memory_gb": round(memory / 1e9, 1), "os": system}


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    # Results themselves are no change of what was measured.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!docs", ":!README.md")
    return (git("rev-parse", "HEAD") or "unknown") + (" with changes" if changed else "")


def own_command() -> str:
    """The command as typed in the repository, without where its result goes and without the places of folders elsewhere."""
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word == "--out":
            next(given, None)
        elif not word.startswith("--out="):
            words.append("FOLDER" if word.startswith("/") else word)
    return " ".join([".venv/bin/python", f"scripts/bench/{Path(sys.argv[0]).name}", *words])


def figure(value: float, unit: str) -> str:
    """A measured value for people."""
    if unit == "s":
        scaled, unit = (value, "s") if value >= 1 else (1e3 * value, "ms")
        return f"{scaled:.{max(0, 2 - (scaled >= 10) - (scaled >= 100))}f} {unit}"
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f} {unit}".strip()


class Comparison:
    """The record of one comparison, from its first measurement to its two files."""

    def __init__(self, name: str, title: str, about: str, args: argparse.Namespace, packages: tuple[str, ...]):
        """`about` says what is compared and how, in Markdown; `packages` are the Python packages whose versions matter."""
        self.out, self.quick = args.out, args.quick
        cargo_version = re.search(r'^version = "(.*?)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
        rust = subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.split()
        self.result = {
            "name": name,
            "title": title,
            "about": " ".join(about.split()),
            "command": own_command(),
            "quick": args.quick,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit(),
            "machine": machine(),
            "versions": {"weince": cargo_version, "rustc": rust[1] if len(rust) > 1 else "unknown", "python": platform.python_version()}
            | versions("torch", *packages),
            "settings": {k: v for k, v in vars(args).items() if k not in ("out", "peer", "peer_only", "folder")},
            "measurements": [],
            "targets": [],
            "tables": [],
            "notes": [],
            "headlines": [],
        }
        print(f"{title}\n{self.result['machine']['processor']}, {len(cores())} cores; {self.result['versions']}", flush=True)

    def add(self, case: str, values: dict[str, list[float]], unit: str = "s", more_is_better: bool = False, headline: dict | None = None) -> dict:
        """What all sides took in a case, ours first. `headline` maps sides to what the README calls them. Gives the ratios: how many times as
        good ours is as each other side, of the medians."""
        summary = {
            side: {"median": statistics.median(v), "least": min(v), "most": max(v), "n": len(v)} for side, v in values.items()
        }
        first, *others = values
        ratios = {}
        for side in others:
            a, b = summary[first]["median"], summary[side]["median"]
            ratios[side] = (a / b if more_is_better else b / a) if a and b else None
        self.result["measurements"].append(
            {"case": case, "unit": unit, "more_is_better": more_is_better, "values": values, "summary": summary, f"{first}_is_times_as_good": ratios}
        )
        for side, name in (headline or {}).items():
            if side in others:
                self.result["headlines"].append({"case": case, "against": side, "called": name})
        print(f"{case}: " + "; ".join(f"{side} {figure(s['median'], unit)}" for side, s in summary.items()), flush=True)
        for side, ratio in ratios.items():
            if ratio:
                print(f"  {first} is {ratio:.2f} times as good as {side}", flush=True)
        return ratios

    def target(self, what: str, value: float | None, limit: float, at_least: bool = True, unit: str = "x") -> None:
        """A figure that was promised, and whether it is met; `None` where it was not measured."""
        met = None if value is None else (value >= limit if at_least else value <= limit)
        self.result["targets"].append({"what": what, "value": value, "limit": limit, "sense": "at least" if at_least else "at most", "unit": unit, "met": met})

    def table(self, title: str, columns: list[str], rows: list[list]) -> None:
        self.result["tables"].append({"title": title, "columns": columns, "rows": rows})

    def note(self, text: str) -> None:
        self.result["notes"].append(" ".join(text.split()))

    def finish(self) -> None:
        """Writes both files, each beside its place first."""
        self.out.mkdir(parents=True, exist_ok=True)
        text = compact(self.result)
        for suffix, text in (("json", text), ("md", markdown(json.loads(text)))):
            path = self.out / f"{self.result['name']}.{suffix}"
            part = path.with_name(path.name + ".part")
            part.write_text(text)
            part.replace(path)
        shown = self.out.relative_to(ROOT) if self.out.is_relative_to(ROOT) else self.out
        print(f"written: {shown}/{self.result['name']}.json and .md", flush=True)


def rounded(value):
    """Six digits of measured numbers: more are noise, and make files that nobody can read."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def compact(result: dict) -> str:
    """JSON with a list of plain values on one line."""
    text = json.dumps(rounded(result), indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r",\s+", ", ", m[1]) + "]", text) + "\n"


def cells(*words) -> str:
    return "| " + " | ".join(str(w).replace("|", "\\|") for w in words) + " |"


def markdown(result: dict) -> str:
    """The page of a result, from nothing but its JSON."""
    m, lines = result["machine"], [f"# {result['title']}", "", result["about"], ""]
    if result["quick"]:
        lines += ["**A smoke run with tiny sizes: no figures.**", ""]
    if result["measurements"]:
        lines += [cells("case", "side", "median", "least to most", "n", "the first is"), "|:---|:---|---:|---:|---:|---:|"]
    for row in result["measurements"]:
        ratios = next(v for k, v in row.items() if k.endswith("_is_times_as_good"))
        for side, s in row["summary"].items():
            word = "" if ratios.get(side) is None else f"{ratios[side]:.2f} x"
            between = f"{figure(s['least'], row['unit'])} to {figure(s['most'], row['unit'])}"
            lines.append(cells(row["case"], side, figure(s["median"], row["unit"]), between, s["n"], word))
    if result["measurements"]:
        lines += ["", "The last column: how many times as good the first side's median is, as fast or as small."]
    if result["targets"]:
        lines += ["", "## Targets", "", cells("what", "target", "measured", "met"), "|:---|---:|---:|:---|"]
    for t in result["targets"]:
        shown = "not measured" if t["value"] is None else f"{t['value']:.3g} {t['unit']}"
        lines.append(cells(t["what"], f"{t['sense']} {t['limit']:g} {t['unit']}", shown, {True: "yes", False: "**no**", None: ""}[t["met"]]))
    for table in result["tables"]:
        lines += ["", f"## {table['title']}", "", cells(*table["columns"]), "|:---|" + "---:|" * (len(table["columns"]) - 1)]
        lines += [cells(*row) for row in table["rows"]]
    if result["notes"]:
        lines += ["", "## Notes", "", *(f"- {note}" for note in result["notes"])]
    packages = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    lines += [
        "", "## How it was measured", "",
        f"    {result['command']}",
        "",
        f"{m['processor']} ({', '.join(m['instructions'])}), {m['cores_used']} cores, {m['memory_gb']:g} GB, {m['os']}; {packages}; commit {result['commit']}; "
        f"{result['date'][:10]}. All sides ran in one go and took turns on the same processors, with as many threads. The JSON file beside this page has every value.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
