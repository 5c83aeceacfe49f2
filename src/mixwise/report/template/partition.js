// Nodes × classes: a square per node and class, its area the number of samples.
function drawPartition() {
  const here = panels.find(one => one.scene.counts);
  at('partition').hidden = !here;
  if (!here) return;
  const { scene, run } = here, { counts, classes, n } = scene;
  const most = Math.max(...counts.flat(), 1), totals = counts.map(row => row.reduce((a, b) => a + b, 0));
  const largest = Math.max(...totals), all = totals.reduce((a, b) => a + b, 0);
  at('partition-lede').textContent = `${all.toLocaleString('en')} samples of ${scene.data} on ${n} nodes, ${plural(String(classes.length))}. `
    + `Each node holds ${spread(totals)} samples of ${plural(spread(counts.map(row => row.filter(Boolean).length)))}`
    + `${data.runs.some(other => other.seed !== run.seed) ? ` (seed ${run.seed})` : ''}.`;
  const width = Math.max(280, at('partition-chart').clientWidth - 30), row = n <= 40 ? 24 : 15;
  const left = 48, bars = Math.min(150, width * 0.24), column = (width - left - bars - 16) / classes.length;
  // Names of classes are level if they are short, slanted if they fit, and otherwise numbers, with the names below.
  const longest = Math.max(...classes.map(textWidth)), level = longest < column - 4;
  const slanted = !level && longest <= 150 && column > 15, named = level || slanted;
  const top = 42 + (slanted ? 0.62 * longest : 0), every = named ? 1 : Math.ceil(textWidth(String(classes.length)) / column + 0.2);
  const side = count => Math.sqrt(count / most) * Math.min(row, column) * 0.94;
  const marks = counts.flatMap((list, i) => list.map((count, k) => {
    if (!count) return svg('circle', { class: 'none', cx: left + (k + .5) * column, cy: top + (i + .5) * row, r: .8, fill: 'var(--rule)' });
    const s = Math.max(1.5, side(count));
    const mark = svg('rect', { x: left + (k + .5) * column - s / 2, y: top + (i + .5) * row - s / 2, width: s, height: s, rx: 1.5, 'data-cell': `${i},${k}` });
    mark.style.fill = classColor(k, classes.length);
    return mark;
  }));
  const drawing = svg('svg', {
    viewBox: `0 0 ${width} ${top + n * row + 8}`, width: '100%', role: 'img',
    'aria-label': `Samples of each of ${classes.length} classes at each of ${n} nodes; the numbers are below`,
  },
  classes.map((name, k) => (k % every ? null : svg('text', {
    class: 'class-name', x: left + (k + .5) * column, y: top - 8, text: named ? name : k, 'text-anchor': slanted ? null : 'middle',
    transform: slanted ? `rotate(-38 ${left + (k + .5) * column} ${top - 8})` : null,
  }))),
  svg('text', { class: 'axis-title', x: left + column * classes.length / 2, y: 13, 'text-anchor': 'middle', text: 'class' }),
  svg('text', { class: 'axis-title', x: 12, y: top + n * row / 2, 'text-anchor': 'middle', transform: `rotate(-90 12 ${top + n * row / 2})`, text: 'node' }),
  svg('text', { class: 'axis-title', x: width - bars, y: 13, text: 'samples' }),
  totals.map((total, i) => svg('g', {},
    svg('text', { x: left - 10, y: top + (i + .5) * row + 4, 'text-anchor': 'end', text: i }),
    svg('line', { class: 'grid', x1: left, x2: left + column * classes.length, y1: top + (i + 1) * row, y2: top + (i + 1) * row, opacity: .5 }),
    svg('rect', { x: width - bars, y: top + (i + .5) * row - 4, width: Math.max(1, (bars - 44) * total / largest), height: 8, rx: 2, fill: 'var(--faint)' }),
    svg('text', { x: width - bars + (bars - 44) * total / largest + 6, y: top + (i + .5) * row + 4, text: total }))),
  marks);
  drawing.addEventListener('pointermove', event => {
    const cell = event.target.dataset && event.target.dataset.cell;
    if (!cell) { tip.hide(); return; }
    const [i, k] = cell.split(',').map(Number);
    tip.show(event.clientX, event.clientY, nodeName(scene, i), [[classes[k], `${counts[i][k]} of ${totals[i]}`, dot(k, scene)]]);
  });
  drawing.addEventListener('pointerleave', tip.hide);
  const list = el('ul', { class: 'classes', 'aria-hidden': 'true' }, classes.length <= 30 || !named ? classes.map((name, k) => el('li', {}, dot(k, scene), named ? name : `${k} ${name}`)) : null);
  show(at('partition-chart'), drawing, list);
  show(at('partition-numbers'), numbersTable('Samples by node and class', ['node', ...classes, 'all'],
    counts.map((list_, i) => [String(i), ...list_.map(String), String(totals[i])])));
}

const plural = count => `${count} ${count === '1' ? 'class' : 'classes'}`;

function spread(values) {
  const [low, high] = extent(values);
  return low === high ? String(low) : `${low} to ${high}`;
}
