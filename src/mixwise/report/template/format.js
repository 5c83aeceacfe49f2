// Numbers as people read them.
const BYTES = [['GB', 1e9], ['MB', 1e6], ['kB', 1e3]];

function bytes(value) {
  for (const [unit, size] of BYTES) if (value >= size) return `${significant(value / size, 3)} ${unit}`;
  return `${Math.round(value)} B`;
}
const significant = (value, digits) => String(Number(value.toPrecision(digits)));

function number(value, percent = false) {
  if (value == null || !Number.isFinite(value)) return '–';
  if (percent) return `${(100 * value).toFixed(1)} %`;
  if (value === 0) return '0';
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2).replace('e+', 'e') : significant(value, 3);
}

// Powers of ten as such: 10⁻⁴.
function power(value) {
  const exponent = Math.log10(value), whole = Math.round(exponent);
  if (Math.abs(exponent - whole) > 1e-6 || (whole > -3 && whole < 4)) return number(value);
  return `10${[...String(whole)].map(c => (c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c])).join('')}`;
}

function seconds(value) {
  if (value >= 3600) return `${significant(value / 3600, 3)} h`;
  if (value >= 60) return `${significant(value / 60, 3)} min`;
  return value >= 1 || value === 0 ? `${significant(value, 3)} s` : `${significant(value * 1000, 3)} ms`;
}

// About `count` round values between two ends; powers of ten (and 2, 5 of them) on a log scale.
function ticks(low, high, count, log) {
  if (log) {
    const all = [];
    const powers = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const steps = powers[1] - powers[0] <= 2 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil((powers[1] - powers[0]) / count));
    for (let p = powers[0]; p <= powers[1]; p += every) for (const s of steps) all.push(s * 10 ** p);
    return all.filter(v => v >= low * 0.999 && v <= high * 1.001);
  }
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(s => s * power).find(s => s >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}
