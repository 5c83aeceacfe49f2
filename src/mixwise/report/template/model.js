// The data of the page, and the choices of the reader. Choices are kept by name, so that they survive an update.
let data = null;
function receive(next) {
  data = next;
  data.variants = data.experiments.flatMap(experiment => experiment.rows.map(row => Object.assign(row, { experiment })));
  data.variants.forEach((row, v) => { row.variant = v; });
  data.separate = data.experiments.some(({ separate }) => separate);
}
receive(JSON.parse(at('data').textContent));
const chosen = {
  experiment: null, metric: null, axis: 'step', log: null, smooth: 1, seeds: false, hidden: null, zoom: null, sort: null,
  left: null, right: null, seed: null, time: null, round: 0, mean: null, channel: 'params',
};
const DASHES = ['', '8 4', '2 4', '10 4 2 4'];
const MARKS = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
  (x, y, r) => `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`,
  (x, y, r) => `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z`,
  (x, y, r) => `M${x} ${y + 1.2 * r}L${x + 1.2 * r} ${y - r}H${x - 1.2 * r}Z`,
];
// A color, a dash and a mark per variant, so that no two are told apart by color alone.
const look = v => ({ color: `var(--c${v % 7})`, dash: DASHES[v % 4], mark: MARKS[v % 5] });

function swatch(v) {
  const { color, dash, mark } = look(v);
  const line = svg('line', { x1: 0, x2: 26, y1: 6, y2: 6, 'stroke-width': 2.4, 'stroke-dasharray': dash });
  const dot = svg('path', { d: mark(13, 6, 3.4) });
  line.style.stroke = color;
  dot.style.fill = color;
  return svg('svg', { class: 'swatch', width: 26, height: 12, 'aria-hidden': 'true' }, line, dot);
}

const runsOf = v => data.runs.filter(run => run.variant === v);
const variantNamed = name => data.variants.findIndex(variant => variant.name === name);

// The experiments whose curves share a chart: all folders, but only one topology, chosen by the reader.
const charts = () => (data.separate ? data.experiments.map(experiment => [experiment]) : [data.experiments]);
function experimentNow() {
  if (!data.experiments.some(({ name }) => name === chosen.experiment)) chosen.experiment = data.experiments[0]?.name;
  return chosen.experiment;
}
const inChart = variant => !data.separate || variant.experiment.name === experimentNow();

// With many variants in a chart, only those that the table ranks first are shown at the start.
function firstHidden() {
  const most = 8;
  return new Set(charts().map(experiments => experiments.flatMap(({ rows }) => rows)).filter(rows => rows.length > most)
    .flatMap(rows => [...rows].sort((a, b) => a.rank - b.rank).slice(most - 1).filter(row => !row.baseline).map(row => row.name)));
}

// Mean and deviation over seeds at every step; {step, x, mean, sd, all: value per seed}.
const cached = new Map();
function series(v, metric, axis, smooth) {
  const key = [v, metric, axis, smooth].join();
  if (!cached.has(key)) cached.set(key, aggregate(runsOf(v), metric, axis, smooth));
  return cached.get(key);
}

function aggregate(runs, metric, axis, smooth) {
  const points = new Map();
  runs.forEach((run, r) => {
    const group = run.groups.find(g => metric in g.y);
    const xs = group && axisValues(run, group, axis);
    if (!xs) return;
    const ys = trailing(group.y[metric], smooth);
    group.steps.forEach((step, k) => {
      if (ys[k] == null || xs[k] == null) return;
      if (!points.has(step)) points.set(step, { step, xs: [], all: [] });
      points.get(step).xs.push(xs[k]);
      points.get(step).all[r] = ys[k];
    });
  });
  return [...points.values()].sort((a, b) => a.step - b.step).map(({ step, xs, all }) => {
    const values = all.filter(y => y != null);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const squares = values.reduce((a, b) => a + (b - mean) ** 2, 0);
    const sd = values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null;
    return { step, x: xs.reduce((a, b) => a + b, 0) / xs.length, mean, sd, all };
  });
}

function axisValues(run, group, axis) {
  if (axis === 'step') return group.steps;
  if (axis === 'epoch') {
    const scene = data.scenes[run.scene];
    return scene && scene.epoch ? group.steps.map(step => (step + 1) / scene.epoch) : null;
  }
  if (axis === 'time') return group.x.network_seconds || null;
  const { bytes_parameters: p, bytes_sketches: s } = group.x;
  return p ? p.map((value, k) => value + (s ? s[k] : 0)) : null;
}

function trailing(values, width) {
  if (width === 1) return values;
  return values.map((_, k) => {
    const some = values.slice(Math.max(0, k + 1 - width), k + 1).filter(y => y != null);
    return some.length ? some.reduce((a, b) => a + b, 0) / some.length : null;
  });
}

const AXES = {
  step: ['Steps', 'step', v => number(v)],
  epoch: ['Epochs', 'epochs', v => number(v)],
  bytes: ['Bytes sent', 'bytes sent per node', bytes],
  time: ['Network time', 'simulated network time', seconds],
};
const hasAxis = axis => data.runs.some(run => run.groups.some(group => axisValues(run, group, axis)));
