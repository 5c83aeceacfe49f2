// Curves with bands over seeds: choose a metric, an axis, variants; hover, zoom, or move along with the arrow keys.
let plot = null;  // the scales and series of the curve that is drawn

const visible = v => !chosen.hidden.has(data.variants[v].name);

function drawCurves() {
  const metrics = data.metrics;
  at('curves').hidden = !metrics.length;
  if (!metrics.length) return;
  if (!metrics.some(metric => metric.key === chosen.metric)) chosen.metric = (metrics.find(m => m.curve) || metrics[0]).key;
  if (!hasAxis(chosen.axis)) chosen.axis = 'step';
  const redraw = change => value => { Object.assign(chosen, change(value)); drawCurves(); };
  const curve = curves();
  const canLog = curve.some(({ points }) => points.some(point => point.mean > 0));
  const log = canLog && (chosen.log === null ? wantsLog(curve) : chosen.log);
  show(at('curve-controls'),
    data.separate && data.experiments.length > 1
      ? menu('Topology', 'experiment', data.experiments.map(({ name }) => [name, name]), experimentNow(),
        redraw(experiment => ({ experiment, zoom: null })))
      : null,
    menu('Metric', 'metric', metrics.map(m => [m.key, m.label]), chosen.metric, redraw(metric => ({ metric, log: null }))),
    segments('Against', 'axis', Object.keys(AXES).filter(hasAxis).map(axis => [axis, AXES[axis][0]]), chosen.axis,
      redraw(axis => ({ axis, zoom: null }))),
    segments('Scale', 'scale', canLog ? [['linear', 'Linear'], ['log', 'Log']] : [['linear', 'Linear']],
      log ? 'log' : 'linear', redraw(scale => ({ log: scale === 'log' }))),
    menu('Smoothing', 'smooth', [[1, 'none'], [5, '5 points'], [20, '20 points']], chosen.smooth,
      redraw(smooth => ({ smooth: Number(smooth) }))),
    data.runs.length > data.variants.length
      ? segments('Seeds', 'seeds', [['band', 'Band'], ['lines', 'Each']], chosen.seeds ? 'lines' : 'band',
        redraw(way => ({ seeds: way === 'lines' })))
      : null);
  drawLegend();
  drawChart(curve, log);
}

const metricNow = () => data.metrics.find(metric => metric.key === chosen.metric);
const curves = () => data.variants
  .map((variant, v) => ({ v, points: inChart(variant) ? series(v, chosen.metric, chosen.axis, chosen.smooth) : [] }))
  .filter(({ points }) => points.length);

// Errors that shrink by orders of magnitude are read on a log scale.
function wantsLog(curve) {
  if (metricNow().percent || chosen.metric === 'consensus_factor') return false;
  const all = curve.flatMap(({ points }) => points.map(point => point.mean)).filter(y => y > 0);
  return all.length > 0 && all.reduce((a, b) => Math.max(a, b)) / all.reduce((a, b) => Math.min(a, b)) > 20;
}

function drawLegend() {
  const listed = data.variants.map((variant, v) => ({ variant, v })).filter(({ variant }) => inChart(variant));
  const buttons = listed.map(({ variant, v }) => el('button', {
    type: 'button', id: `variant-${v}`, 'aria-pressed': String(visible(v)), title: `${variant.note} (shift: only this)`,
    onclick: event => { toggle(variant.name, event.shiftKey); drawCurves(); },
  }, swatch(v), el('span', { text: variant.name })));
  const all = listed.map(({ variant }) => variant.name), others = () => [...chosen.hidden].filter(name => !all.includes(name));
  const set = names => () => { chosen.hidden = new Set([...others(), ...names]); drawCurves(); };
  const more = all.length > 2 ? [
    el('button', { type: 'button', class: 'all', id: 'show-all', text: 'Show all', onclick: set([]) }),
    el('button', { type: 'button', class: 'all', id: 'show-none', text: 'Hide all', onclick: set(all) })] : [];
  const hidden = all.filter(name => chosen.hidden.has(name)).length;
  const first = hidden && all.every(name => firstHidden().has(name) === chosen.hidden.has(name));
  show(at('legend'), buttons, more, first ? el('p', {
    class: 'note', id: 'hidden-note', text: `The ${all.length - hidden} curves with the best results or of plain gossip are shown; the other ${hidden} are crossed out. Click a name, or Show all.`,
  }) : null);
}

function toggle(name, only) {
  const shown = data.variants.filter(inChart).map(variant => variant.name);
  if (only) chosen.hidden = new Set([...[...chosen.hidden].filter(other => !shown.includes(other)), ...shown.filter(other => other !== name)]);
  else if (!chosen.hidden.delete(name)) chosen.hidden.add(name);
}

function drawChart(all, log) {
  const place = at('chart'), metric = metricNow(), [, axisLabel, axisFormat] = AXES[chosen.axis];
  const shown = all.filter(({ v }) => visible(v));
  const width = Math.max(280, place.clientWidth), height = width < 560 ? 300 : 420;
  const longest = Math.max(0, ...shown.map(({ v }) => textWidth(data.variants[v].name)));
  const labels = width >= 720 && shown.length <= 16 && longest < width * 0.4;  // never cut: the legend has all names
  const box = { left: 58, right: width - (labels ? longest + 24 : 14), top: 12, bottom: height - 42 };
  const inside = ({ x }) => !chosen.zoom || (x >= chosen.zoom[0] && x <= chosen.zoom[1]);
  const drawable = ({ mean }) => !log || mean > 0;
  const points = shown.flatMap(curve => curve.points).filter(point => inside(point) && drawable(point));
  at('curve-title').textContent = metric.label;
  at('curve-note').textContent = metric.note;
  if (!points.length) {
    plot = null;
    show(place, el('p', { class: 'note', text: shown.length ? 'No values in this range.' : 'No variant is selected.' }));
    return;
  }
  const xs = points.map(point => point.x);
  const ys = points.flatMap(({ mean, sd, all: each }) => (chosen.seeds ? each.filter(y => y != null && (!log || y > 0))
    : sd != null && (!log || mean > sd) ? [mean - sd, mean + sd] : [mean]));
  const X = scale(...(chosen.zoom || fromZero(extent(xs))), box.left, box.right, false);
  const Y = scale(...padded(log ? logExtent(ys) : extent(ys), log, metric.percent), box.bottom, box.top, log);
  plot = { X, Y, box, shown, metric, axisFormat, log };
  const id = 'plot-area';
  const drawing = svg('svg', {
    viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: 'group', 'aria-roledescription': 'chart', id: 'curve-svg',
    'aria-label': `${metric.label} against ${axisLabel}, ${shown.length} variants. Arrow keys read values, Escape shows all.`,
  },
  svg('clipPath', { id }, svg('rect', { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 8 })),
  axes(X, Y, box, axisLabel, axisFormat, metric, log, height),
  svg('g', { 'clip-path': `url(#${id})` }, shown.map(curve => drawCurve(curve, X, Y, log))),
  labels ? endLabels(shown, X, Y, box, log) : null,
  svg('g', { id: 'cursor' }));
  show(place, drawing, chosen.zoom ? el('button', {
    type: 'button', class: 'quiet', id: 'unzoom', text: 'Reset zoom', onclick: () => { chosen.zoom = null; drawCurves(); },
  }) : null);
  listen(drawing);
  drawCurveNumbers(shown, axisLabel, axisFormat, metric);
}

// On a log scale a few values next to zero, such as a first step that has not moved yet, would take all the room.
function logExtent(values) {
  const sorted = values.filter(y => y > 0).sort((a, b) => a - b), low = sorted[Math.floor(sorted.length * 0.04)];
  return [Math.max(sorted[0], low / 30), sorted.at(-1)];
}

const extent = values => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];

const fromZero = ([low, high]) => [low > 0 && low < high / 2 ? 0 : low, high];

function padded([low, high], log, percent) {
  if (log) return [low / 1.15, high * 1.15];
  const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - pad) : low - pad, percent ? Math.min(Math.max(1, high), high + pad) : high + pad];
}

function scale(low, high, from, to, log) {
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const f = log ? Math.log : value => value;
  const map = value => from + (to - from) * (f(value) - f(low)) / (f(high) - f(low));
  return Object.assign(map, { low, high, back: pixel => low + (high - low) * (pixel - from) / (to - from) });
}

function axes(X, Y, box, axisLabel, axisFormat, metric, log, height) {
  const across = Math.max(3, Math.floor((box.right - box.left) / 105));
  return svg('g', {},
    ticks(Y.low, Y.high, 6, log).map(y => svg('g', {}, svg('line', { class: 'grid', x1: box.left, x2: box.right, y1: Y(y), y2: Y(y) }),
      svg('text', { x: box.left - 9, y: Y(y) + 4, 'text-anchor': 'end', text: metric.percent ? `${significant(100 * y, 3)} %` : log ? power(y) : number(y) }))),
    ticks(X.low, X.high, across, false).map(x => svg('text', { x: X(x), y: box.bottom + 20, 'text-anchor': 'middle', text: axisFormat(x) })),
    svg('line', { class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg('text', { x: (box.left + box.right) / 2, y: height - 4, 'text-anchor': 'middle', text: axisLabel }));
}

function drawCurve({ v, points }, X, Y, log) {
  const { color, dash, mark } = look(v);
  const there = points.filter(({ mean }) => !log || mean > 0);
  const line = pairs => pairs.map(([x, y], k) => `${k ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
  const group = svg('g', { class: 'variant', 'data-variant': data.variants[v].name });
  const path = (attributes, property = 'stroke') => {
    const node = svg('path', attributes);
    node.style[property] = color;
    group.append(node);
  };
  if (chosen.seeds) {
    runsOf(v).forEach((run, r) => {
      const own = points.filter(({ all }) => all[r] != null && (!log || all[r] > 0));
      path({ class: 'seed', d: line(own.map(({ x, all }) => [X(x), Y(all[r])])) });
    });
  } else {
    const band = there.filter(({ sd }) => sd != null);
    const low = ({ mean, sd }) => Y(log ? Math.max(mean - sd, Math.min(mean, Y.low)) : mean - sd);
    const outline = [...band.map(p => [X(p.x), Y(p.mean + p.sd)]), ...band.map(p => [X(p.x), low(p)]).reverse()];
    if (band.length > 1) path({ class: 'band', opacity: plot.shown.length > 3 ? .09 : .16, d: `${line(outline)}Z` }, 'fill');
    else if (band.length) path({ class: 'curve', d: line(outline) });
  }
  path({ class: 'curve', 'stroke-dasharray': dash, d: line(there.map(({ x, mean }) => [X(x), Y(mean)])) });
  const marked = there.length <= 24 ? there : there.slice(-1);
  path({ d: marked.map(({ x, mean }) => mark(X(x), Y(mean), 3.6)).join('') }, 'fill');
  return group;
}

// Names at the ends of the curves, pushed apart where they would overlap.
function endLabels(shown, X, Y, box, log) {
  const ends = shown.map(({ v, points }) => {
    const last = points.filter(p => (!log || p.mean > 0) && (!chosen.zoom || p.x <= chosen.zoom[1])).at(-1);
    return last && { v, y: Math.max(box.top, Math.min(box.bottom, Y(last.mean))), x: Math.min(box.right, X(last.x)), want: 0 };
  }).filter(Boolean).sort((a, b) => a.y - b.y);
  ends.forEach((end, k) => { end.want = k ? Math.max(end.y, ends[k - 1].want + 16) : end.y; });
  for (let k = ends.length - 1, floor = box.bottom; k >= 0; k--) floor = (ends[k].want = Math.min(ends[k].want, floor)) - 16;
  return svg('g', { 'aria-hidden': 'true' }, ends.map(({ v, y, want, x }) => {
    const lead = svg('path', { d: `M${x + 4} ${y}L${box.right + 8} ${want}`, fill: 'none', opacity: .5 });
    const label = svg('text', { class: 'label', x: box.right + 12, y: want + 4, text: data.variants[v].name });
    lead.style.stroke = look(v).color;
    label.style.fill = look(v).color;
    return svg('g', {}, lead, label);
  }));
}

// The width of a label in pixels.
function textWidth(text) {
  const label = svg('text', { class: 'label', text }), ruler = svg('svg', { class: 'said' }, label);
  at('curves').append(ruler);
  const width = label.getComputedTextLength();
  ruler.remove();
  return width;
}

function drawCurveNumbers(shown, axisLabel, axisFormat, metric) {
  const steps = [...new Set(shown.flatMap(({ points }) => points.map(point => point.step)))].sort((a, b) => a - b);
  const rows = steps.length <= 24 ? steps : [...Array(24).keys()].map(k => steps[Math.round(k * (steps.length - 1) / 23)]);
  show(at('curve-numbers'), numbersTable(`${metric.label} by step`,
    ['step', ...shown.map(({ v }) => data.variants[v].name)],
    rows.map(step => [String(step), ...shown.map(({ points }) => {
      const point = points.find(p => p.step === step);
      return point ? valueText(point, metric) : '–';
    })])));
}
const valueText = ({ mean, sd }, { percent }) => number(mean, percent) + (sd == null ? '' : ` ± ${number(sd, percent)}`);

// --- pointer and keys ---
function listen(drawing) {
  const x = event => event.clientX - drawing.getBoundingClientRect().left;
  let from = null;
  drawing.addEventListener('pointerdown', event => { from = x(event); });
  drawing.addEventListener('pointermove', event => {
    if (from !== null && event.buttons && Math.abs(x(event) - from) > 6) brush(from, x(event));
    else readAt(plot.X.back(x(event)), event.clientX, event.clientY);
  });
  drawing.addEventListener('pointerup', event => {
    const ends = [from, x(event)].map(pixel => plot.X.back(Math.max(plot.box.left, Math.min(plot.box.right, pixel))));
    if (from !== null && Math.abs(x(event) - from) > 12) { chosen.zoom = ends.sort((a, b) => a - b); drawCurves(); }
    from = null;
  });
  drawing.addEventListener('pointerleave', () => { from = null; unread(); });
  drawing.addEventListener('dblclick', () => { chosen.zoom = null; drawCurves(); });
  drawing.addEventListener('blur', unread);
  let walked = null;
  drawing.addEventListener('keydown', event => {
    if (event.key === 'Escape') { chosen.zoom = null; drawCurves(); return; }
    if (!['ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(event.key)) return;
    event.preventDefault();
    const xs = [...new Set(plot.shown.flatMap(({ points }) => points.map(p => p.x)))].sort((a, b) => a - b);
    const stride = Math.max(1, Math.round(xs.length / 60));
    const moves = { ArrowLeft: k => k - stride, ArrowRight: k => k + stride, Home: () => 0, End: () => xs.length - 1 };
    walked = Math.max(0, Math.min(xs.length - 1, moves[event.key](walked === null ? -stride : walked)));
    const area = drawing.getBoundingClientRect();
    readAt(xs[walked], area.left + plot.X(xs[walked]), area.top + 40, true);
  });
}

function brush(from, to) {
  tip.hide();
  at('cursor').replaceChildren(svg('rect', {
    class: 'brush', x: Math.min(from, to), width: Math.abs(to - from), y: plot.box.top, height: plot.box.bottom - plot.box.top,
  }));
}

function readAt(x, clientX, clientY, aloud = false) {
  const near = plot.shown.map(({ v, points }) => {
    const usable = points.filter(p => !plot.log || p.mean > 0);
    return usable.length && { v, point: usable.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a)) };
  }).filter(Boolean).sort((a, b) => b.point.mean - a.point.mean);
  if (!near.length) return;
  const at_ = near.map(({ point }) => point.x).reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
  const { X, Y, box, metric, axisFormat } = plot;
  at('cursor').replaceChildren(svg('line', { class: 'cursor', x1: X(at_), x2: X(at_), y1: box.top, y2: box.bottom }),
    ...near.map(({ v, point }) => {
      const dot = svg('path', { d: look(v).mark(X(point.x), Y(point.mean), 4.5) });
      dot.style.fill = look(v).color;
      return dot;
    }));
  const title = chosen.axis === 'step' ? `step ${number(at_)}` : axisFormat(at_) + (chosen.axis === 'epoch' ? ' epochs' : '');
  tip.show(clientX, clientY, title, near.slice(0, 14).map(({ v, point }) => [data.variants[v].name, valueText(point, metric), swatch(v)]));
  if (aloud) at('curve-said').textContent = `${title}. ${near.map(({ v, point }) => `${data.variants[v].name} ${valueText(point, metric)}`).join('; ')}`;
}

function unread() {
  tip.hide();
  if (at('cursor')) at('cursor').replaceChildren();
}
