"""The report in a real browser: headless Chromium, driven by Playwright.

Without a Chromium on the machine these tests are skipped; with MIXWISE_BROWSER=required, as in .ci/run, they fail.
"""

import os
import shutil
from contextlib import contextmanager

import pytest

from mixwise.experiments import load_recipe, plan_experiment, run_experiment
from mixwise.report.page import save_page
from run_folders import made_folder, planned, served, wait_until

pytestmark = pytest.mark.xdist_group("browser")  # one browser for all of them

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LONG = "a-variant-whose-name-is-much-longer-than-anybody-would-like-to-read-on-a-phone"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        missing = "no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("MIXWISE_BROWSER") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def opening(browser):
    """Opens pages, and at the end checks that the console is empty and that no other host was contacted."""
    contexts, said, asked = [], [], []

    def open_(url, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(20_000)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(url)
        wait_until_ready(tab)
        return tab

    yield open_
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "http://127.0.0.1"))] == []


def wait_until_ready(tab):
    tab.wait_for_selector("html[data-ready]", state="attached")


@pytest.fixture
def open_page(browser):
    with opening(browser) as open_:
        yield open_


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A small real run: labels, weights that stay and weights that move, network time."""
    folder = tmp_path_factory.mktemp("browser") / "digits"
    changes = ["variants=dsgd-momentum-metropolis,ha-dsgd-momentum,auto", "seeds=0,1", "steps=12"]
    links = "links={latency: 0.01, bandwidth: 1.0e6, edges: {0-1: {bandwidth: 1.0e4}}}"
    run_experiment(plan_experiment(load_recipe("digits"), [*changes, links]), folder)
    return folder


def page_of(folder):
    """The address of the report of a run folder."""
    return (folder / "report.html").as_uri()


def reported(folder):
    """The address of a new report of a run folder, or of those inside it."""
    save_page([folder], folder / "report.html")
    return page_of(folder)


@pytest.fixture(scope="module")
def tab_of_report(digits, browser):
    with opening(browser) as open_:
        yield open_(page_of(digits))


@pytest.fixture
def report(tab_of_report):
    """The page as it opens, in a tab that the tests share: a new one costs more than what they look at."""
    tab_of_report.reload()
    wait_until_ready(tab_of_report)
    return tab_of_report


def curve(tab, variant):
    """The path of a curve as it is drawn."""
    return tab.locator(f"[data-variant='{variant}'] .curve").first.get_attribute("d")


def ribbons(tab, side):
    """The shapes of the edges of one picture."""
    return [path.get_attribute("d") for path in tab.locator(f"#{side} .ribbon").all()]


def test_it_opens_with_all_its_parts(report):
    assert report.locator("h1").inner_text() == "digits"
    assert "did best" in report.locator(".story").inner_text()
    assert not {"None", "undefined", "NaN"} & set(report.locator("body").inner_text().split())
    assert report.locator(".result tbody tr").count() == 3
    assert report.locator("td.best").count() == 4
    assert report.locator("#right-variant").input_value() == "auto"  # the best gossip method, and its control
    assert report.locator("#left-variant").input_value() == "dsgd-momentum-metropolis"
    assert report.locator("#left .node").count() == 16
    assert report.locator("#partition-chart rect[data-cell]").count() > 16
    assert "mixwise run" in report.locator("#reproduce pre").first.inner_text()
    assert report.locator(".problems").count() == 0
    nameless = report.evaluate(
        """() => [...document.querySelectorAll('button, select, input, svg[tabindex], [role=img]')].filter(node =>
          !(node.textContent.trim() || node.getAttribute('aria-label') || (node.labels && node.labels.length)))
          .map(node => node.outerHTML.slice(0, 80))"""
    )
    assert nameless == []  # everything that can be used has a name


def show(report, left="dsgd-momentum-metropolis", right="ha-dsgd-momentum"):
    """Fixed weights on the left, weights that are optimized at every mixing on the right."""
    report.locator("#left-variant").select_option(left)
    report.locator("#right-variant").select_option(right)


def test_rounds_are_shown_one_by_one_each_in_its_color(report):
    """Pairs on a ring: half of the edges in every round, the other half in the next."""
    slider = report.locator("#time")
    slider.press("Home")
    shown, colors = [], []
    for number in (1, 2):
        assert report.locator("#time-now").inner_text() == f"Step 0 of 11, round {number} of 8"
        drawn = report.locator(f"#right .ribbon[data-round='{number}']").all()
        used = [path for path in drawn if path.get_attribute("d")]
        shown.append({path.get_attribute("data-edge") for path in used})
        colors.append({path.evaluate("path => getComputedStyle(path).fill") for path in used})
        slider.press("ArrowRight")
    for edges in shown:
        assert len(edges) == 8
        assert len({node for edge in edges for node in edge.split("-")}) == 16  # every node has one partner
    assert not shown[0] & shown[1]
    assert [len(found) for found in colors] == [1, 1]
    assert colors[0] != colors[1]
    report.locator("#mean").select_option("1")
    wait_until(lambda: all(ribbons(report, "right")))


def test_hovering_shows_neighbors_weights_and_accuracy(report):
    show(report)
    report.locator("#left .node").first.hover()
    own, *others, accuracy = [row.split() for row in report.locator("#tip .row").all_inner_texts()[:4]]
    assert own[:2] == ["own", "weight"]
    assert [other[:4] for other in others] == [["weight", "of", "node", "1"], ["weight", "of", "node", "15"]]
    assert [float(row[-1]) for row in (own, *others)] == pytest.approx([1 / 3] * 3, abs=0.001)
    assert accuracy[0] == "accuracy"


def test_nodes_are_colored_by_accuracy_and_models_are_dots(report):
    slider = report.locator("#time")
    looks = []
    for key in ("Home", "End"):
        slider.press(key)
        dots = [[float(dot.get_attribute(c)) for c in ("cx", "cy")] for dot in report.locator("#left .model").all()]
        cores = [core.evaluate("core => core.style.fill") for core in report.locator("#left .core").all()]
        looks.append((dots, cores))
    assert all(len(dots) == 16 == len(cores) for dots, cores in looks)
    assert looks[0][1] == [""] * 16  # not evaluated yet
    assert len(set(looks[1][1])) > 4
    assert len({tuple(dot) for dot in looks[0][0]}) == 1  # all start from one model
    assert len({tuple(dot) for dot in looks[1][0]}) > 8


def test_a_click_leaves_no_focus_box_and_a_key_does(report):
    report.locator("#axis-epoch").click()
    outline = "document.activeElement.id + getComputedStyle(document.activeElement).outlineStyle"
    assert report.evaluate(outline) == "axis-epochnone"
    report.keyboard.press("Shift")
    assert report.evaluate(outline) == "axis-epochsolid"


def test_names_of_curves_are_whole_and_hidden_ones_are_explained(tmp_path, open_page):
    names = [f"dsgd-momentum-optimal-gap-{k}" for k in range(10)]
    runs = {name: [[{"step": t, "loss": 1 + k / (t + 1)} for t in range(9)]] for k, name in enumerate(names)}
    tab = open_page(reported(made_folder(tmp_path / "many", runs)))
    labels = tab.locator("#curve-svg text.label").all()
    assert sorted(label.text_content() for label in labels) == names[:7]
    right = tab.locator("#curve-svg").bounding_box()
    assert all(box["x"] + box["width"] <= right["x"] + right["width"] for box in (e.bounding_box() for e in labels))
    assert "the other 3 are crossed out" in tab.locator("#hidden-note").inner_text()
    tab.locator("#show-all").click()
    assert tab.locator("#hidden-note").count() == 0
    assert tab.locator("#curve-svg .variant").count() == 10


TOO_WIDE = """() => [...document.querySelectorAll('.card')]
  .filter(card => card.scrollWidth > card.clientWidth + 1).map(card => card.innerText.slice(0, 60))"""
OVERLAPPING = """() => [...document.querySelectorAll('#chart svg, #partition-chart svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3;
  return texts.flatMap(([a, p], k) => texts.slice(k + 1).filter(([, q]) => meet(p, q)).map(([b]) => `${a}|${b}`));
})"""
WIDE = ":root { --sans: 'DejaVu Sans Mono', monospace; --serif: 'DejaVu Sans Mono', monospace; }"


@pytest.mark.parametrize("width", [390, 850, 1000])
def test_nothing_overflows_or_overlaps_at_any_width_even_with_a_wide_font(digits, width, open_page):
    tab = open_page(page_of(digits), width, bypass_csp=True)
    tab.add_style_tag(content=WIDE)
    tab.set_viewport_size({"width": width + 1, "height": 900})  # draws the charts again
    wait_until(lambda: tab.evaluate("innerWidth") == width + 1)
    assert tab.evaluate(TOO_WIDE) == []
    assert tab.evaluate(OVERLAPPING) == []


def test_the_partition_has_axes_and_one_class_is_one_class(tmp_path, open_page):
    tab = open_page(named_run(tmp_path, "one", "", counts=[[5, 0], [0, 5]], classes=["cat", "dog"]))
    assert "Each node holds 5 samples of 1 class." in tab.locator("#partition-lede").inner_text()
    titles, names = (tab.locator(f"#partition-chart .{kind}").all() for kind in ("axis-title", "class-name"))
    assert [title.text_content() for title in titles] == ["class", "node", "samples"]
    assert [name.text_content() for name in names] == ["cat", "dog"]


def test_the_slider_and_play_change_the_weights_that_move_and_not_those_that_stay(report):
    show(report)
    slider = report.locator("#time")
    slider.press("Home")
    first = [ribbons(report, side) for side in ("left", "right")]
    assert "step 0 of 11" in report.locator("#time-now").inner_text().lower()
    slider.press("End")
    last = [ribbons(report, side) for side in ("left", "right")]
    assert "step 11 of 11" in report.locator("#time-now").inner_text().lower()
    assert first[0] == last[0]
    assert first[1] != last[1]
    assert all(path for path in first[0])
    slider.press("Home")
    report.locator("#play").click()
    wait_until(lambda: int(slider.input_value()) > 1)
    report.locator("#play").click()
    assert report.locator("#play").inner_text() == "Play"


def test_edges_are_as_wide_as_their_weights(report):
    """The left picture is Metropolis-Hastings on a ring: 1/3 everywhere."""
    show(report)
    weights = [path.get_attribute("data-weight") for path in report.locator("#left .ribbon").all()]
    assert weights == ["0.333"] * 16
    widths = report.evaluate(
        """() => [...document.querySelectorAll('.ribbon')].map(path => {
          const [a, b, c, d] = path.getAttribute('d').slice(1, -1).split('L').map(p => p.split(' ').map(Number));
          const width = ([x, y], [u, v]) => Math.hypot(x - u, y - v);
          return [(width(a, d) + width(b, c)) / 2, Number(path.dataset.weight)];
        })"""
    )
    assert len(widths) == 32
    per_weight = [width / weight for width, weight in widths]
    assert per_weight == pytest.approx([per_weight[0]] * 32, rel=0.05)  # one scale in both; pixels are rounded
    assert len({weight for _, weight in widths[16:]}) > 3


def test_the_axis_switch_changes_the_curve(report):
    paths, labels = set(), set()
    report.locator("#metric").select_option("consensus_distance")
    for axis in ("step", "epoch", "bytes", "time"):
        report.locator(f"#axis-{axis}").click()
        paths.add(curve(report, "auto"))
        labels.add(report.locator("#curve-svg").get_attribute("aria-label"))
    assert len(labels) == 4
    assert len(paths) >= 2  # in another unit, a curve may look the same
    assert "simulated network time" in "".join(labels)


def test_a_chart_shows_the_curves_of_one_topology(tmp_path, open_page):
    runs = {f"{place}/{name}": [[{"step": t, "loss": 1.0 + t} for t in range(9)]] for place in "xy" for name in "ab"}
    tab = open_page(reported(made_folder(tmp_path / "two", runs)))
    for place in "xy":
        tab.locator("#experiment").select_option(place)
        names = [f"{place}/a", f"{place}/b"]
        assert [button.inner_text() for button in tab.locator("#legend button:not(.all)").all()] == names
        drawn = tab.locator("#curve-svg .variant").all()
        assert [each.get_attribute("data-variant") for each in drawn] == names
    assert tab.locator(".story").count() == tab.locator(".result").count() == 2


def test_a_variant_is_hidden_and_shown_by_click_and_by_key(report):
    button = report.locator("#variant-2")
    assert report.locator("[data-variant='auto']").count() == 1
    button.click()
    assert report.locator("[data-variant='auto']").count() == 0
    assert button.get_attribute("aria-pressed") == "false"
    button.press("Space")
    assert report.locator("[data-variant='auto']").count() == 1
    assert report.evaluate("document.activeElement.id") == "variant-2"  # the focus stays


def test_metrics_scales_and_seeds_can_be_switched(report):
    report.locator("#metric").select_option("gradient_mixing_error")
    before = curve(report, "auto")
    other = "linear" if report.locator("#scale-log").get_attribute("aria-pressed") == "true" else "log"
    report.locator(f"#scale-{other}").click()
    assert curve(report, "auto") != before
    report.locator("#seeds-lines").click()
    assert report.locator("[data-variant='auto'] .seed").count() == 2
    assert report.locator(".band").count() == 0


def test_drag_zooms_double_click_shows_all_and_hover_tells_values(report):
    report.locator("#metric").select_option("loss")
    whole = curve(report, "auto")
    chart = report.locator("#curve-svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    y = box["y"] + box["height"] / 2
    report.mouse.move(box["x"] + 200, y)
    assert "auto" in report.locator("#tip").inner_text()
    assert report.locator("#tip").evaluate("tip => tip.style.visibility") == "visible"
    report.mouse.down()
    report.mouse.move(box["x"] + 300, y, steps=4)
    report.mouse.move(box["x"] + 450, y, steps=4)
    report.mouse.up()
    assert curve(report, "auto") != whole
    assert report.locator("#unzoom").count() == 1
    report.mouse.dblclick(box["x"] + 300, y)
    assert curve(report, "auto") == whole


def test_the_keyboard_reads_values_and_nodes_aloud(report):
    report.locator("#curve-svg").press("ArrowRight")
    assert "auto" in report.locator("#curve-said").text_content()
    show(report)
    report.locator("#left svg").first.press("ArrowRight")
    said = report.locator("#network-said").text_content()
    assert said.startswith("Node 0: own weight 0.33")
    assert said.count("%") in (2, 3)  # the labels that it holds, and its accuracy if it was evaluated


def test_figures_have_their_numbers_as_tables(report):
    for section, rows in (("curves", 2), ("network", 16), ("partition", 16)):
        report.locator(f"#{section} details summary").click()
        report.wait_for_selector(f"#{section} details[open] td")
        assert report.locator(f"#{section} details tbody tr").count() >= rows
    rows = [row.split() for row in report.locator("#network-numbers table").first.locator("tbody tr").all_inner_texts()]
    assert [row[:2] for row in rows[:4]] == [["0", "0"], ["0", "1"], ["0", "15"], ["1", "0"]]
    assert [float(weight) for *_, weight in rows] == pytest.approx([1 / 3] * 48, abs=0.001)


def test_dark_mode_follows_the_system_and_the_button(digits, open_page):
    tab = open_page(page_of(digits), color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = tab.evaluate(background)
    tab.locator("#theme").click()
    light = tab.evaluate(background)
    assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(",")))


@pytest.mark.parametrize("kind", ["digits", "names"])
def test_a_phone_does_not_scroll_sideways(kind, digits, open_page, tmp_path):
    page = page_of(digits) if kind == "digits" else named_run(tmp_path, LONG, "A " + "very" * 60 + " long description")
    tab = open_page(page, width=390)
    for details in tab.locator("summary").all():
        details.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def named_run(tmp_path, variant, description, name="run", **changes):
    """The report of one small run with names as users might write them."""
    records = [{"step": t, "loss": 2.0 - t / 10, "bytes_parameters": t, name: 1.0} for t in range(10)]
    scene = {
        "n": 2, "edges": [[0, 1]], "labels": [name, name], "counts": [[1, 2], [3, 4]], "classes": [name, description],
        "data": name, "steps": 10, "policy": description, "algorithm": name,
    }  # fmt: skip
    weights = [{"step": 0, "params": [{"pairs": [0, 1, 500]}]}]
    head = {"name": name, "description": description}
    return reported(made_folder(tmp_path / "named", {variant: [records]}, {variant: scene | changes}, weights, **head))


def test_names_with_script_in_them_are_shown_as_text(tmp_path, open_page):
    evil = "<script>window.hacked = 1</script>"
    name = "</script><script>window.hacked = 2</script><img src=x onerror='window.hacked = 3'>"
    tab = open_page(named_run(tmp_path, evil, f"{name} <!-- {evil}", name))
    assert tab.locator("h1").inner_text() == name
    assert tab.locator(".result .name").inner_text() == evil
    assert tab.locator("#legend button").first.inner_text() == evil
    assert evil in tab.locator(".story").inner_text()
    tab.locator("#left .node").first.hover()
    assert name in tab.locator("#tip").inner_text()
    tab.locator("#curve-svg").press("ArrowRight")
    assert tab.locator("img").count() == 0
    assert tab.evaluate("window.hacked") is None


def test_quadratics_have_no_classes_and_no_partition(tmp_path, open_page):
    changes = ["steps=6", "variants=dsgd-metropolis,ha-dsgd", "seeds=0"]
    run_experiment(plan_experiment(load_recipe("quadratics"), changes), tmp_path / "run")
    tab = open_page(page_of(tmp_path / "run"))
    assert tab.locator("#left .node").count() == 16
    assert not tab.locator("#partition").is_visible()
    assert not tab.locator("#axis-epoch").count()
    assert "With a single seed" in tab.locator(".story").inner_text()


def test_references_stand_apart_seeds_are_paired_and_a_torus_is_drawn_as_a_grid(tmp_path, open_page):
    variants = {"plain": {"policy": "metropolis-hastings"}, "pairs": {}, "all": {"policy": "full-averaging"}}
    given = {"policy": "pairs", "graph": "torus:4x4", "optimizer": {"lr": 0.001}, "steps": 6}
    run_experiment(planned(variants, seeds=[0, 1], metrics=["consensus_distance"], **given), tmp_path / "run")
    tab = open_page(page_of(tmp_path / "run"))
    rows = [row.inner_text() for row in tab.locator(".result tbody tr").all()]
    assert [text.split()[0] for text in rows] == ["pairs", "plain", "References:", "all"]
    best = [row.locator("td.best").count() for row in tab.locator(".result tbody tr").all()]
    assert best == [1, 0, 0, 0]  # although the distance of the reference is 0
    assert "better on 2 of 2 seeds" in rows[0]
    assert "better on 2 of 2 seeds" in tab.locator(".story").inner_text()
    circles = tab.locator("#left .node-back").all()
    places = {(float(c.get_attribute("cx")), float(c.get_attribute("cy"))) for c in circles}
    assert len(places) == 16
    assert len({x for x, _ in places}) == len({y for _, y in places}) == 4


def test_trees_two_channels_and_no_weights_can_be_looked_at(tmp_path, open_page):
    changes = ["variants=relay,full-averaging", "seeds=0", "steps=4"]
    run_experiment(plan_experiment(load_recipe("digits"), changes), tmp_path / "one")
    policy = {"kind": "decoupled", "params": "metropolis-hastings", "updates": {"kind": "heterogeneity-aware"}}
    variants = {
        "two": {"algorithm": "decoupled", "policy": policy},
        "none": {"algorithm": "all-reduce", "policy": "none"},
    }
    channels = planned(variants, "name=channels", steps=4, graph="ring:6", optimizer={"lr": "0.3/L"})
    run_experiment(channels, tmp_path / "two")
    tab = open_page(reported(tmp_path))
    assert tab.locator("h1").inner_text() == "digits and channels"
    tab.locator("#left-variant").select_option("digits: relay")
    assert "spanning tree" in tab.locator("#left").inner_text()
    tab.locator("#right-variant").select_option("channels: two")
    before = ribbons(tab, "right")
    tab.locator("#channel").select_option("updates")
    assert ribbons(tab, "right") != before
    tab.locator("#left-variant").select_option("channels: none")
    assert "No weights were recorded" in tab.locator("#left").inner_text()


@pytest.mark.parametrize("what", ["empty", "damaged"])
def test_folders_that_lack_something_give_a_page_that_says_so(what, digits, tmp_path, open_page):
    folder = tmp_path / "run"
    if what == "empty":
        folder.mkdir()
    else:
        shutil.copytree(digits, folder)
        path = folder / "auto" / "seed-0" / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:4]) + "{nonsense\n")
        (folder / "config.yaml").write_text("{")
        (folder / "auto" / "seed-1" / "scene.json").unlink()
    tab = open_page(reported(folder))
    said = tab.locator(".problems").inner_text()
    assert {"empty": "no runs", "damaged": "damaged"}[what] in said
    assert tab.locator("#curves").is_visible() == (what != "empty")


def test_watch_follows_a_run_and_keeps_what_was_chosen(digits, tmp_path, open_page):
    folder = tmp_path / "run"
    shutil.copytree(digits, folder)
    path = folder / "auto" / "seed-1" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    with served(folder) as server:
        tab = open_page(server.url)
        assert "3 of 12 steps" in tab.locator(".problems").inner_text()
        tab.locator("#metric").select_option("loss")
        tab.locator("#axis-bytes").click()
        tab.locator("#variant-0").click()
        before = curve(tab, "auto")
        path.write_text("".join(lines))
        wait_until(lambda: tab.locator(".problems").count() == 0)
        assert curve(tab, "auto") != before
        assert tab.locator("#metric").input_value() == "loss"
        assert tab.locator("#axis-bytes").get_attribute("aria-pressed") == "true"
        assert tab.locator("[data-variant='dsgd-momentum-metropolis']").count() == 0
        wait_until(lambda: tab.locator("#live").inner_text() == "all runs finished")
        tab.close()
