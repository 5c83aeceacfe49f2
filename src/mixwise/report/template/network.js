// Two variants side by side: the graph with its weights at one step, and W as a heat map.
let panels = [];
let playing = null;

const pictured = v => runsOf(v).filter(run => run.scene != null);

function drawNetwork() {
  const there = data.variants.map((_, v) => v).filter(v => pictured(v).length);
  at('network').hidden = !there.length;
  panels = [];
  if (!there.length) return;
  choosePair(there);
  const seeds = [...new Set(there.flatMap(v => pictured(v).map(run => run.seed)))].sort((a, b) => a - b);
  if (!seeds.includes(chosen.seed)) [chosen.seed] = seeds;
  panels = ['left', 'right'].map(side => panel(side, there));
  const large = panels.map(p => p.scene).find(scene => scene.of);
  at('network-lede').textContent = `${large ? neighborhoodText(large) : ''}${panels.some(p => p.scene.counts) ? 'Each node is a pie of the labels it holds, around its accuracy. ' : ''}`
    + 'The width of an edge at each end is the weight that the node there gives to its neighbor'
    + `${severalRounds() ? '; each round of a mixing has its color' : ''}. `
    + 'Fixed weights stay the same; optimized weights follow the data.'
    + `${panels.some(p => p.strip) ? ' The dots below a graph are the models: the closer they are, the more they agree.' : ''}`;
  drawNetworkControls(seeds);
  drawFrame(true);
}

// What can be read of a graph that is too large to show.
function neighborhoodText({ n, of, degrees }) {
  const shares = degrees.map((count, degree) => [degree, count / of]).filter(([, share]) => share).sort(([, a], [, b]) => b - a);
  const common = shares.slice(0, 8).map(([degree, share]) => `${degree} (${(100 * share).toPrecision(3)} %)`).join(', ');
  return `A neighborhood of ${n} of the ${of.toLocaleString('en')} nodes; edges to others are left out. `
    + `Degrees of all nodes: ${common}${shares.length > 8 ? ', …' : ''}. `;
}

function choosePair(there) {
  const usable = name => there.includes(variantNamed(name));
  const ranked = [...there].sort((a, b) => data.variants[a].rank - data.variants[b].rank);
  // On the right the best method that gossips, on the left its control.
  const best = ranked.find(v => !data.variants[v].reference) ?? ranked[0], { control } = data.variants[best];
  const others = ranked.filter(v => v !== best && data.variants[v].experiment === data.variants[best].experiment);
  const against = usable(control) ? variantNamed(control)
    : others.find(v => data.variants[v].plain) ?? others.find(v => !data.variants[v].reference) ?? others[0] ?? best;
  if (!usable(chosen.left)) chosen.left = data.variants[against].name;
  if (!usable(chosen.right)) chosen.right = data.variants[best].name;
}

function drawNetworkControls(seeds) {
  const { length } = timeline();
  const slider = el('input', {
    type: 'range', id: 'time', min: 0, max: Math.max(0, length - 1), step: 1, 'aria-describedby': 'time-now',
    oninput: event => { stop(); [chosen.time, chosen.round] = timeline()[Number(event.target.value)]; drawFrame(); },
  });
  const mean = meanNow();
  show(at('network-controls'),
    el('button', { type: 'button', class: 'play', id: 'play', text: playing ? 'Pause' : 'Play', disabled: length < 2, onclick: () => (playing ? stop() : play()) }),
    el('div', { class: 'control time' }, el('label', { for: 'time', id: 'time-now', text: 'Step' }), slider),
    menu('Shown', 'mean', [...(severalRounds() ? [[0, 'one round']] : []), [1, 'one mixing'], [2, 'mean of 2 mixings'], [10, 'mean of 10 mixings']], mean,
      value => { chosen.mean = Number(value); drawFrame(); }),
    panels.some(p => p.run.weights && p.run.weights.updates)
      ? menu('Channel', 'channel', [['params', 'parameters'], ['updates', 'updates']], chosen.channel, value => { chosen.channel = value; drawFrame(); })
      : null,
    seeds.length > 1 ? menu('Seed', 'seed', seeds.map(seed => [seed, seed]), chosen.seed, value => {
      chosen.seed = Number(value);
      drawNetwork();
      drawPartition();
    }) : null);
}

// Rounds are shown one by one, and an alternating policy as the mean of a whole turn, unless the reader chooses otherwise.
const severalRounds = () => panels.some(({ run }) => run.weights && roundsOf(run, chosen.channel).some(rounds => rounds.length > 1));
const meanNow = () => {
  if (chosen.mean !== null && (chosen.mean || severalRounds())) return chosen.mean;
  if (severalRounds()) return 0;
  return panels.some(p => /\bin turn\b/.test(data.variants[p.v].note)) ? 2 : 1;
};

// The frames of the slider, [step, round]: every step at which something was recorded of either variant, round by round.
function timeline() {
  const steps = new Set(panels.flatMap(({ run }) => [...(run.weights ? run.weights.at : []), ...(run.nodes ? run.nodes.at : [])]));
  panels.forEach(({ run }) => { if (run.done) steps.add(run.done - 1); });
  const sorted = [...steps].sort((a, b) => a - b);
  if (meanNow()) return sorted.map(step => [step, null]);
  const rounds = step => Math.max(1, ...panels.map(({ run }) => roundCount(run, step, chosen.channel)));
  const stride = Math.ceil(sorted.length * rounds(sorted[0] ?? 0) / 400);
  return sorted.filter((step, k) => k % stride === 0 || k === sorted.length - 1)
    .flatMap(step => [...Array(rounds(step)).keys()].map(round => [step, round]));
}

function panel(side, there) {
  const v = variantNamed(chosen[side]);
  const run = pictured(v).find(r => r.seed === chosen.seed) || pictured(v)[0], scene = data.scenes[run.scene];
  const choose = el('select', {
    id: `${side}-variant`, 'aria-label': `Variant on the ${side}`,
    onchange: event => { chosen[side] = event.target.value; drawNetwork(); drawPartition(); },
  }, there.map(k => el('option', { value: data.variants[k].name, text: data.variants[k].name, selected: k === v })));
  const note = el('p', { class: 'note', text: data.variants[v].note });
  const graph = scene.xy ? graphPicture(scene, run) : null;
  const heat = run.weights && !run.weights.tree ? heatMap(scene.n) : null;
  const strip = run.nodes ? modelStrip(scene) : null;
  const here = { side, v, run, scene, graph, heat, strip, state: el('p', { class: 'heat-side' }), on: null };
  const why = !run.weights ? 'No weights were recorded: this method does not mix with weights, or the run is too large or too old.'
    : run.weights.tree ? 'Messages pass along a spanning tree; there are no weights.' : null;
  show(at(side), choose, note, el('div', { class: 'pictures' },
    el('div', {}, graph ? graph.place : el('p', { class: 'note', text: `A graph of ${scene.n} nodes is too large to draw.` }), strip ? strip.place : null),
    el('div', {}, heat ? [heat.place, heat.scale] : null, why ? el('p', { class: 'heat-side', text: why }) : here.state)));
  if (graph) pointAtGraph(here);
  if (heat) pointAtHeat(here);
  return here;
}

function drawFrame(atOnce = false) {
  const frames = timeline(), slider = at('time');
  if (chosen.time === null) [chosen.time] = frames[Math.ceil(frames.length * 0.3)] ?? frames[0] ?? [0];  // past the first weights, which are often not optimized yet
  const beyond = ([step, round]) => step > chosen.time || (step === chosen.time && round > chosen.round);
  let k = frames.length - 1;
  while (k > 0 && beyond(frames[k])) k--;
  const [step, round] = frames[k] ?? [0, null], several = Math.max(0, ...panels.map(({ run }) => roundCount(run, step, chosen.channel)));
  slider.max = Math.max(0, frames.length - 1);
  slider.value = k;
  const name = `Step ${step} of ${frames.length ? frames.at(-1)[0] : 0}${round !== null && several > 1 ? `, round ${round + 1} of ${several}` : ''}`;
  slider.setAttribute('aria-valuetext', name);
  at('time-now').textContent = frames.length ? name : 'Step';
  drawModels(step);
  const mean = meanNow();
  for (const one of panels) {
    if (!one.run.weights) { if (one.graph) one.graph.draw([]); continue; }
    const now = weightsAt(one.run, step, mean, chosen.channel, round);
    Object.assign(one, { now });
    one.on = one.on && !atOnce ? one.on : Float32Array.from(now.on);
    show(one.state, stateText(now, mean, one.run.weights.at.length === 1), roundKey(now), accuracyText(one));
  }
  const top = panels.filter(one => one.heat && one.now).map(one => highest(one));
  panels.forEach(one => { if (one.heat && one.now) one.heat.draw(one.now.W, Math.max(...top)); });
  settle();
  if (at('network-numbers').parentElement.open) drawNetworkNumbers();
}

const stateText = ({ rounds, step, shown }, mean, fixed) => `W[i, j] is the weight that node j (column) gives to node i (row). `
  + (fixed ? 'The same at every mixing.' : mean > 1 ? `Mean of the last ${mean} recorded mixings.` : `Mixing at step ${step}.`)
  + (rounds < 2 ? '' : shown === null ? ` ${rounds} rounds per mixing: widths are summed, W is the product.` : ` Round ${shown + 1} of ${rounds}.`);

// The colors of the rounds, the one that is shown in bold.
function roundKey({ rounds, shown }) {
  if (rounds < 2 || rounds > 12) return null;
  return el('span', { class: 'rounds' }, [...Array(rounds).keys()].map(round => {
    const mark = el('i');
    mark.style.background = roundColor(round);
    return el('span', { class: round === shown ? 'on' : null }, mark, `round ${round + 1}`);
  }));
}

// The models at a step: dots at one scale in both pictures, and accuracies in one range of colors.
function drawModels(step) {
  const size = Math.max(...panels.map(({ run }) => (run.nodes ? run.nodes.size : 0)));
  panels.forEach(one => { one.models = nodesAt(one.run, step); });
  const all = panels.flatMap(({ models }) => (models && models.accuracy) || []);
  const shades = ramp(), [low, high] = all.length ? extent(all) : [0, 1];
  for (const { strip, models, graph } of panels) {
    if (strip) strip.draw(models, size);
    if (graph) graph.shade(models && models.accuracy, value => shades(0.06 + 0.88 * (high > low ? (value - low) / (high - low) : 0.5)));
  }
}

function accuracyText({ models }) {
  if (!models || !models.accuracy) return null;
  const [low, high] = extent(models.accuracy).map(value => number(value, true));
  return el('span', { text: ` Centers of nodes: accuracy, here ${low === high ? low : `${low} to ${high}`}.` });
}

// The widest arc over the whole run.
function widestArc({ run }) {
  let most = 0;
  for (const step of looksAt(run)) for (const w of weightsAt(run, step, 1, chosen.channel).on) if (w > most) most = w;
  return most;
}

// Some of the recorded steps, spread over the run.
function looksAt({ weights: { at: steps } }) {
  const stride = Math.max(1, Math.floor(steps.length / 20));
  return steps.filter((_, k) => k % stride === 0);
}

// The largest entry of W over the whole run, so that colors keep their meaning while it plays.
function highest(one) {
  const key = meanNow() ? 'mixing' : 'round';
  one.highest ??= {};
  if (!one.highest[key]) {
    let most = 0.05;
    for (const step of looksAt(one.run)) {
      for (const w of weightsAt(one.run, step, 1, chosen.channel, meanNow() ? null : 0).W) if (w > most) most = w;
    }
    one.highest[key] = most;
  }
  return one.highest[key];
}

// Let the drawn widths approach the true ones; at once for readers who prefer reduced motion.
let settling = null;
function settle() {
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  cancelAnimationFrame(settling);
  // Several rounds add up to more than 1/2; both pictures shrink alike, so that widths can be compared.
  const scale = Math.min(1, 0.6 / Math.max(...panels.map(one => (one.now ? one.widest ??= widestArc(one) : 0)), 0.6));
  const move = () => {
    let rest = 0;
    for (const { graph, on, now } of panels) {
      if (!graph || !now) continue;
      for (let a = 0; a < on.length; a++) {
        const gap = now.on[a] - on[a];
        on[a] = still || Math.abs(gap) < 0.004 ? now.on[a] : on[a] + 0.4 * gap;
        rest = Math.max(rest, Math.abs(now.on[a] - on[a]));
      }
      graph.draw(on, scale, now);
    }
    if (rest > 0) settling = requestAnimationFrame(move);
  };
  move();
}

function play() {
  const frames = timeline();
  if (Number(at('time').value) >= frames.length - 1) [chosen.time, chosen.round] = frames[0];
  const pause = Math.max(90, Math.min(600, 12000 / frames.length));
  playing = setInterval(() => {
    const next = timeline()[Number(at('time').value) + 1];
    if (next === undefined) { stop(); return; }
    [chosen.time, chosen.round] = next;
    drawFrame();
  }, pause);
  at('play').textContent = 'Pause';
}

function stop() {
  clearInterval(playing);
  playing = null;
  if (at('play')) at('play').textContent = 'Play';
}

// --- details on demand ---
const nodeName = (scene, i) => `Node ${i}${scene.labels ? ` (${scene.labels[i]})` : ''}`;

function nodeFacts({ scene, now, models }, i) {
  const rows = [];
  if (now) {
    rows.push(['own weight', number(now.W[i * scene.n + i])]);
    const heard = [...Array(scene.n).keys()].map(j => [j, now.W[j * scene.n + i]]).filter(([j, w]) => j !== i && w > 0.0005).sort((a, b) => b[1] - a[1]);
    heard.slice(0, 8).forEach(([j, w]) => rows.push([`weight of ${nodeName(scene, j).toLowerCase()}`, number(w)]));
    if (heard.length > 8) rows.push([`and of ${heard.length - 8} more`, '']);
  }
  if (models && models.accuracy) rows.push(['accuracy', number(models.accuracy[i], true)]);
  const counts = scene.counts && scene.counts[i];
  if (counts) {
    const total = counts.reduce((a, b) => a + b, 0);
    counts.map((count, k) => [count, k]).filter(([count]) => count).sort(([a], [b]) => b - a).slice(0, 8).forEach(([count, k]) => {
      rows.push([scene.classes[k], `${count} (${Math.round(100 * count / total)} %)`, dot(k, scene)]);
    });
  }
  return rows;
}

function dot(k, scene) {
  const mark = el('i');
  Object.assign(mark.style, { background: classColor(k, scene.classes.length), display: 'inline-block', width: '9px', height: '9px', borderRadius: '2px', marginRight: '6px' });
  return mark;
}

function pointAtGraph(here) {
  const { graph, scene } = here;
  let walked = -1;
  const highlight = i => graph.nodes.forEach((node, k) => node.classList.toggle('on', k === i));
  graph.place.addEventListener('pointermove', event => {
    const node = event.target.closest('.node'), edge = event.target.closest('.ribbon');
    if (node) {
      const i = Number(node.dataset.node);
      highlight(i);
      tip.show(event.clientX, event.clientY, nodeName(scene, i), nodeFacts(here, i));
    } else if (edge && here.now) {
      const { i, j } = graph.edges[graph.ribbons.indexOf(edge)];
      tip.show(event.clientX, event.clientY, `${i} – ${j}`,
        [[`weight of ${i} at ${j}`, number(graph.weight(here.now.on, i, j))], [`weight of ${j} at ${i}`, number(graph.weight(here.now.on, j, i))]]);
    } else { highlight(-1); tip.hide(); }
  });
  const leave = () => { highlight(-1); tip.hide(); };
  graph.place.addEventListener('pointerleave', leave);
  graph.place.addEventListener('blur', leave);
  graph.place.addEventListener('keydown', event => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    walked = (walked + move + scene.n + (walked < 0 && move < 0 ? 1 : 0)) % scene.n;
    highlight(walked);
    const area = graph.nodes[walked].getBoundingClientRect(), facts = nodeFacts(here, walked);
    tip.show(area.right, area.top, nodeName(scene, walked), facts);
    at('network-said').textContent = `${nodeName(scene, walked)}: ${facts.map(([name, value]) => `${name} ${value}`).join(', ')}`;
  });
}

function pointAtHeat(here) {
  here.heat.place.addEventListener('pointermove', event => {
    const cell = here.heat.cell(event);
    if (!cell || !here.now) return;
    const [i, j] = cell;
    tip.show(event.clientX, event.clientY, `W[${i}, ${j}] = ${number(here.now.W[i * here.scene.n + j])}`, [[i === j ? `own weight of node ${i}` : `weight that node ${j} gives to node ${i}`, '']]);
  });
  here.heat.place.addEventListener('pointerleave', tip.hide);
}

// The weights as text, for readers who do not see the pictures.
function drawNetworkNumbers() {
  show(at('network-numbers'), panels.filter(one => one.now).map(({ v, run, now, scene }) => {
    const rows = [...now.W].map((w, e) => [Math.floor(e / scene.n), e % scene.n, w]).filter(([, , w]) => w > 0.0005);
    rows.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const title = `${data.variants[v].name}, seed ${run.seed}: weights at step ${now.step}`;
    return el('div', {}, el('h3', { text: title }), numbersTable(title, ['from', 'to', 'weight'],
      rows.slice(0, 400).map(([i, j, w]) => [String(i), String(j), w.toFixed(3)])));
  }));
}
