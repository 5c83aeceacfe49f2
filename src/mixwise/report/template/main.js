// Draws the whole page, and keeps it up to date while a run is in progress.
function drawAll() {
  cached.clear();
  if (chosen.hidden === null) chosen.hidden = firstHidden();
  drawIntro();
  drawTables();
  drawCurves();
  drawNetwork();
  drawPartition();
  drawReproduce();
}

// --- light and dark ---
const remembered = (() => { try { return localStorage.getItem('mixwise-theme'); } catch { return null; } })();
const systemDark = matchMedia('(prefers-color-scheme: dark)');
let theme = remembered;

function applyTheme() {
  const dark = theme ? theme === 'dark' : systemDark.matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  at('theme').textContent = dark ? 'Light mode' : 'Dark mode';
}
at('theme').addEventListener('click', () => {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('mixwise-theme', theme); } catch { /* a page from a file may have no storage */ }
  applyTheme();
  drawFrameIfAny();
});
systemDark.addEventListener('change', () => { applyTheme(); drawFrameIfAny(); });
const drawFrameIfAny = () => { if (panels.length) drawFrame(true); };

// --- a focus box is for the keyboard ---
addEventListener('pointerdown', () => { document.documentElement.dataset.pointer = ''; }, true);
addEventListener('keydown', () => { delete document.documentElement.dataset.pointer; }, true);

// --- sizes ---
let width = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === width) return;  // a phone that hides its address bar
  width = innerWidth;
  drawCurves();
  drawPartition();
});
at('network-numbers').parentElement.addEventListener('toggle', drawNetworkNumbers);

// --- live ---
async function follow() {
  const badge = at('live');
  let seen = data.stamp;
  for (;;) {
    await new Promise(done => { setTimeout(done, 1500); });
    try {
      const answer = await fetch(`data.json?since=${encodeURIComponent(seen)}`, { cache: 'no-store' });
      if (answer.status === 200 && !document.querySelector(':active')) {  // not while a control is pressed
        const next = await answer.json();
        receive(next);
        seen = next.stamp;
        drawAll();
      }
      badge.textContent = data.running ? 'live' : 'all runs finished';
      badge.classList.toggle('on', data.running);
    } catch {
      badge.textContent = 'mixwise watch has stopped; these are the last data received';
      badge.classList.remove('on');
    }
  }
}

applyTheme();
drawAll();
document.documentElement.dataset.ready = 'yes';
if (data.live) follow();
