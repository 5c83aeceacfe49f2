"""`python docs/screenshots.py RUN MAP SITE`: the pictures in docs/images of the report, of two runs, and of the site.

    mixwise run digits variants=dsgd-momentum-metropolis,auto,full-averaging --out RUN
    mixwise run digits graph=file:Abilene.graphml variants=dsgd-momentum-metropolis,auto steps=120 --seeds 0 --out MAP
    make docs                                 # SITE is docs/_build/html

Needs Playwright and a Chromium, as the browser tests do. Abilene is a network of the Internet Topology Zoo.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
SHOTS = {  # name -> folder, width, height, colors, section or the top of the page
    "report-light": (0, 1200, 1440, "light", None),
    "report-dark": (0, 1200, 1440, "dark", None),
    "report-network": (1, 1200, 900, "light", "#network"),
    "report-phone": (1, 390, 900, "dark", "#right"),
    "site": (2, 1100, 900, "light", None),
}


def main(*folders: str) -> None:
    """Take all pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for name, (folder, width, height, colors, section) in SHOTS.items():
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colors)
            if folder < 2:
                tab.goto((Path(folders[folder]) / "report.html").resolve().as_uri())
                tab.wait_for_selector("html[data-ready]", state="attached")
            else:
                tab.goto((Path(folders[folder]) / "index.html").resolve().as_uri())
            file = IMAGES / f"{name}.png"
            if section is None:
                tab.screenshot(path=file)
            else:
                tab.locator(section).screenshot(path=file)
            picture = Image.open(file).convert("RGB")
            picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, optimize=True)
            tab.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
