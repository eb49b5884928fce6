"""The report: what it says of made-up runs, and the page in a real browser, offline, with hostile text."""

import base64
import gzip
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, script, snakemake
from playwright.sync_api import Browser, Page, expect, sync_playwright
from toolrl import manifest
from toolrl.evaluation import Evaluation, failure_class
from toolrl.trajectories import packed
from toolrl.wording import percent

ARMS = ("tool", "tool_withheld", "no_tool")
SCRIPTS = "<script>window.pwned = 1</script></script><img src=x onerror='window.pwned=1'><svg onload='window.pwned=1'>"
UNSEEN = "\u202eevil\u202c\x1b[31m\x07\x00\ud800\u2066\x9b"
HOSTILE = f"{SCRIPTS}{UNSEEN}<!--{{{{7*7}}}}' onfocus=window.pwned=1 autofocus x='"
LONG = "long line " * 100_000
APT_SECONDS = 600


def build(folder: Path, runs: dict[str, dict], **settings: Any) -> Path:
    """report.py on made-up runs; returns the page."""
    several = {} if list(runs) == ["main"] else {name: run["changes"] for name, run in runs.items()}
    config = {**next(iter(runs.values()))["config"], "runs": several, **settings}
    page = folder / "report.html"
    folders = {name: run["folders"] for name, run in runs.items()}
    arguments = ["--settings", json.dumps(config), "--runs", json.dumps(folders), "--out", str(page)]
    arguments += ["--template", str(ROOT / "report" / "template.html")]
    result = script("report", *arguments, "--provenance", str(folder / "provenance.json"))
    assert result.returncode == 0, result.stderr
    return page


def unpacked(text: str) -> dict[str, Any]:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def badge(page: Path) -> str:
    return re.search(r'<span class="badge">([^<]+)</span>', page.read_text())[1]


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [((0.3, 0.9), "improved"), ((0.9, 0.3), "worse"), ((0.5, 0.5), "not distinguishable")],
)
def test_the_badge(tmp_path: Path, accuracy: tuple[float, float], verdict: str) -> None:
    page = build(tmp_path, {"main": synthetic.run(tmp_path / "run", accuracy=accuracy)})
    assert badge(page) == verdict and "A single training seed" in page.read_text()


def test_a_broken_contract_is_invalid(tmp_path: Path) -> None:
    run = synthetic.run(tmp_path / "run")
    record = manifest.read_json(tmp_path / "run" / "trained" / "manifest.json")
    manifest.write_json(tmp_path / "run" / "trained" / "manifest.json", record | {"model": {"another": 1}})
    page = build(tmp_path, {"main": run})
    assert badge(page) == "invalid" and "is not the one that training exported" in page.read_text()


def test_several_runs_are_compared_pairwise_and_seeds_summarised(tmp_path: Path) -> None:
    runs = {
        "base": synthetic.run(tmp_path / "a", accuracy=(0.4, 0.6), seed=1),
        "seed2": synthetic.run(tmp_path / "b", accuracy=(0.4, 0.62), changes={"train": {"seed": 2}}, seed=2),
        "fast": synthetic.run(tmp_path / "c", accuracy=(0.4, 0.99), changes={"train": {"learning_rate": 1e-3}}, seed=3),
        "other": synthetic.run(tmp_path / "d", test_set="another"),
    }
    text = build(tmp_path, runs).read_text()
    assert "Training seeds base, seed2: mean accuracy" in text and "over 2 seeds" in text
    assert "train.seed: 2" in text and "train.learning_rate: 0.001" in text
    assert text.count("cannot be compared: their test sets differ") == 3
    assert "over 3 comparisons" in text and "<td>better</td>" in text


def test_provenance_beside_the_report(tmp_path: Path) -> None:
    changes = {"report": {"gpu_hour_price": 3.0}, "train": {"learning_rate": 2e-4}}
    build(tmp_path, {"main": synthetic.run(tmp_path / "run", changes=changes)})
    record = json.loads((tmp_path / "provenance.json").read_text())
    (run,) = record["runs"]
    assert re.fullmatch(r"[0-9a-f]{40}", record["code"]["commit"])
    assert run["changed_from_defaults"]["train.learning_rate"] == 2e-4
    assert run["gpu_hours"] == pytest.approx(240 * 2 / 3600) and run["cost"] == pytest.approx(run["gpu_hours"] * 3)
    assert [attempt["reason"] for attempt in run["attempts"]] == ["killed", "finished"]
    for key in ("seeds", "scorer", "test_set", "chat_template", "tool_config", "lock", "versions", "hardware"):
        assert run[key], key


def test_every_wrong_item_is_in_one_class(tmp_path: Path) -> None:
    synthetic.run(tmp_path / "run", items=30)
    items = Evaluation(tmp_path / "run" / "start").items
    assert set(items["failure"][items["value_correct"]]) == {""}
    assert all(items["failure"][~items["value_correct"]])
    row = items.iloc[0].to_dict() | {"value_correct": False, "cut_by_length": True, "no_answer": True}
    assert failure_class(row) == "cut by the length limit"
    assert failure_class(row | {"cut_by_length": False}) == "no answer stated"


def test_samples_and_repeats(tmp_path: Path) -> None:
    text = build(tmp_path, {"main": synthetic.run(tmp_path / "run", repeats=2, samples=4)}).read_text()
    start, trained = (Evaluation(tmp_path / "run" / model).sampled for model in ("start", "trained"))
    for name in ("pass@1", "pass@2", "pass@4", "maj@4"):
        row = re.search(f'<tr><th scope="row">{name}</th>(.*?)</tr>', text, re.DOTALL)
        difference = 100 * (trained[name].mean() - start[name].mean())
        assert row and f"<td>{difference:+.1f} (" in row[1] and row[1].count("<td>") == 2 + 3
    assert "Noise floor: evaluated again" in text


def test_the_base_model_is_a_third_column(tmp_path: Path) -> None:
    changes = {"evaluate": {"base": True}}
    run = synthetic.run(tmp_path / "run", arms=ARMS, accuracy=(0.1, 0.5, 0.5), samples=2, changes=changes)
    page = build(tmp_path, {"main": run})
    rows = re.findall(r"<tr>.*?</tr>", page.read_text(), re.DOTALL)
    accuracies = [row for row in rows if row.startswith('<tr><th scope="row">tool</th>')]
    bases = Evaluation(tmp_path / "run" / "base").accuracy("tool")
    assert len(accuracies) == 2 and f"<td>{percent(bases)}</td>" in accuracies[0]
    assert accuracies[0].count("<td>") == 1 + 3 + 4 and accuracies[1].count("<td>") == 4
    assert all(sum(row.startswith(f'<tr><th scope="row">{name}') for row in rows) for name in ("pass@2", "maj@2"))
    assert badge(page) == "not distinguishable", "the verdict is about training"


def test_one_sample_has_no_majority(tmp_path: Path) -> None:
    text = build(tmp_path, {"main": synthetic.run(tmp_path / "run", samples=1)}).read_text()
    assert '<th scope="row">pass@1</th>' in text and "1 sample of each item" in text and "maj@" not in text


def test_packing_loses_nothing(tmp_path: Path) -> None:
    synthetic.run(tmp_path / "run", items=3, hostile=lambda index: HOSTILE)
    evaluations = tuple(Evaluation(tmp_path / "run" / model) for model in ("start", "trained"))
    item = unpacked(packed({"main": evaluations}))["runs"]["main"]["tool"][0]
    assert HOSTILE in item["sides"][0]["turns"][0]["content"]
    assert HOSTILE.replace("\ud800", "\\ud800") in item["question"]


def test_a_page_may_hold_some_items_only(tmp_path: Path, page: Page) -> None:
    run = synthetic.run(tmp_path / "run", items=30, arms=ARMS)
    whole, drawn = (
        build(
            tmp_path, {"main": run}, report={"title": "t", "gpu_hour_price": None, "trajectories": at_most}
        ).read_text()
        for at_most in (None, 4)
    )
    assert "At most" not in whole and "At most 4 items of each run" in drawn
    above = [text.partition("<h2>Trajectories</h2>")[0] for text in (whole, drawn)]
    assert above[0] == above[1], "the numbers are of all items"
    open_report(page, tmp_path / "report.html")
    expect(page.locator("#viewer-count")).to_have_text("4 of 4 items")


def test_items_are_drawn_once_for_all_arms(tmp_path: Path) -> None:
    synthetic.run(tmp_path / "run", items=30, arms=ARMS)
    evaluations = tuple(Evaluation(tmp_path / "run" / model) for model in ("start", "trained"))
    runs = {"main": evaluations, "other": evaluations}
    drawn = [
        [item["index"] for item in items]
        for arms in unpacked(packed(runs, 4, seed=1))["runs"].values()
        for items in arms.values()
    ]
    assert len(drawn) == 6 and len(drawn[0]) == 4 and all(indices == drawn[0] for indices in drawn)
    assert packed(runs, 4, seed=1) != packed(runs, 4, seed=2)
    assert packed(runs, 30, seed=1) == packed(runs)


def test_compare_in_the_terminal_and_as_json(tmp_path: Path) -> None:
    for name, test_set in {"a": "t", "b": "t", "c": "other"}.items():
        synthetic.run(tmp_path / name / "evaluate", arms=ARMS, accuracy=(0.2, 0.9), test_set=test_set)
    shown = script("compare", str(tmp_path / "a" / "evaluate" / "start"), str(tmp_path / "b"))
    assert shown.returncode == 0 and "better" in shown.stdout and "tool_withheld" in shown.stdout
    result = script("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json")
    arms = json.loads(result.stdout)["arms"]
    assert list(arms) == list(ARMS) and arms["tool"]["verdict"] == "not distinguishable"
    refused = script("compare", str(tmp_path / "a"), str(tmp_path / "c"))
    assert refused.returncode == 1 and "their test sets differ" in refused.stderr and "Traceback" not in refused.stderr
    missing = script("compare", str(tmp_path / "a"), str(tmp_path / "nowhere"))
    assert missing.returncode == 1 and "holds no finished evaluation" in missing.stderr


def chromium() -> str:
    """A Chromium on this machine, installed if need be."""
    names = ("chromium", "chromium-browser", "google-chrome")
    if not any(map(shutil.which, names)) and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=APT_SECONDS)
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], capture_output=True, timeout=APT_SECONDS)
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium, and it could not be installed")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page without a network; console messages, errors and requests are kept in `page.noise`."""
    context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.noise = []
    opened.on("console", lambda message: opened.noise.append(message.text))
    opened.on("pageerror", lambda error: opened.noise.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith("file:") else opened.noise.append(request.url))
    yield opened
    context.close()


def open_report(page: Page, file: Path) -> float:
    """Opens the report; returns the seconds until the viewer is ready."""
    started = time.monotonic()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-viewer=ready]", timeout=20_000)
    return time.monotonic() - started


def test_filter_search_and_expand(page: Page, tmp_path: Path) -> None:
    file = build(tmp_path, {"main": synthetic.run(tmp_path / "run", items=120, arms=ARMS)})
    open_report(page, file)
    entries = page.locator("#viewer-list > details")
    assert entries.count() == 50 and page.locator("#viewer-count").inner_text() == "120 of 120 items"
    page.locator("#viewer-more").click()
    assert entries.count() == 100
    page.select_option("#viewer-flow", "fixed")
    assert "fixed" in entries.first.locator("summary").inner_text()
    page.select_option("#viewer-flow", "")
    page.fill("#viewer-search", "are 117 and")
    expect(page.locator("#viewer-count")).to_have_text("1 of 120 items")
    entries.first.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(entries.first).to_contain_text("trained")
    assert "start" in entries.first.inner_text() and "#### " in entries.first.inner_text()
    assert entries.first.locator(".tool").count() == 2, "tool responses are marked"
    page.select_option("#viewer-arm", "no_tool")
    assert page.locator("#viewer-count").inner_text() == "1 of 120 items"
    page.fill("#viewer-search", "")
    page.select_option("#viewer-failure", "wrong answer")
    assert 0 < int(page.locator("#viewer-count").inner_text().split()[0]) < 120
    assert page.noise == []


def test_hostile_text_is_shown_and_nothing_executes(page: Page, tmp_path: Path) -> None:
    run = synthetic.run(tmp_path / "run", items=8, hostile=lambda index: LONG if index == 7 else HOSTILE)
    name = HOSTILE.replace("\ud800", "")  # YAML cannot hold it
    file = build(tmp_path, {name: run}, report={"title": name, "gpu_hour_price": None, "trajectories": None})
    open_report(page, file)
    entries = page.locator("#viewer-list > details")
    for number in range(8):
        entries.nth(number).locator("summary").click()
    expect(entries.nth(7)).to_contain_text("trained")
    text = entries.first.inner_text()
    assert "<script>window.pwned = 1</script>" in text and "onfocus=window.pwned=1" in text
    for code in ("202E", "001B", "0007", "0000", "D800", "2066", "009B"):
        assert f"⟨U+{code}⟩" in text, code
    assert page.evaluate("window.pwned") is None
    button = entries.nth(7).get_by_role("button").first
    assert "show all" in button.inner_text()
    button.click()
    assert len(entries.nth(7).locator(".text").first.inner_text()) >= len(LONG) - 1
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the layout holds"
    assert page.noise == []


def test_thousands_of_trajectories_stay_fluent(page: Page, tmp_path: Path) -> None:
    run = synthetic.run(tmp_path / "run", items=1319, arms=ARMS)
    started = time.monotonic()
    file = build(tmp_path, {"main": run})
    built = time.monotonic() - started
    ready = open_report(page, file)
    page.fill("#viewer-search", "are 1300 and")
    expect(page.locator("#viewer-count")).to_have_text("1 of 1319 items")
    print(f"7,914 trajectories: {file.stat().st_size / 1e6:.2f} MB, built in {built:.1f} s, ready in {ready:.2f} s")
    assert file.stat().st_size <= 8e6


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 400])
def test_accessibility(browser: Browser, tmp_path: Path, scheme: str, width: int) -> None:
    file = build(tmp_path, {"main": synthetic.run(tmp_path / "run", items=12, arms=ARMS, repeats=1, samples=2)})
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    open_report(page, file)
    page.locator("#viewer-list > details").first.locator("summary").click()
    found = Axe().run(page)
    serious = [
        (violation["id"], node["html"][:200])
        for violation in found.response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    levels = [
        int(level) for level in page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => h.tagName[1])")
    ]
    assert levels[0] == 1 and all(later <= earlier + 1 for earlier, later in zip(levels, levels[1:])), levels
    context.close()


@pytest.mark.e2e
def test_snakemakes_own_report(results: Path, page: Page, tmp_path: Path) -> None:
    built = snakemake(ROOT, "--report", str(tmp_path / "run.zip"), "results/report.html")
    assert built.returncode == 0, built.stdout + built.stderr
    shutil.unpack_archive(tmp_path / "run.zip", tmp_path)
    page.goto((tmp_path / "run" / "report.html").as_uri())
    for category in ("Result", "Training", "Evaluation", "Preflight"):
        expect(page.get_by_text(category, exact=True).first).to_be_visible()
    assert not [line for line in page.noise if "Error" in line], page.noise


@pytest.mark.e2e
def test_the_real_report_in_a_browser(results: Path, page: Page) -> None:
    open_report(page, results / "report.html")
    assert page.locator("#viewer-count").inner_text() == "256 of 256 items"
    assert page.locator("svg[role=img]").count() >= 7
    assert page.noise == []
