'use strict';

// Tables: a click on a head sorts by its column, a second click in reverse; empty cells stay last.

function sortBy(head) {
  const table = head.closest('table'), body = table.tBodies[0];
  const place = [...head.parentNode.children].indexOf(head);
  const numbers = [...body.rows].some((row) => row.cells[place].dataset.key !== undefined);
  const old = head.getAttribute('aria-sort');
  const way = old ? (old === 'ascending' ? 'descending' : 'ascending') : 'ascending';
  const keys = new Map([...body.rows].map((row) => {
    const cell = row.cells[place];
    return [row, numbers ? (cell.dataset.key === undefined ? null : Number(cell.dataset.key)) : cell.textContent || null];
  }));
  const compare = (a, b) => (numbers ? a - b : a.localeCompare(b, 'en', {numeric: true}));
  const rows = [...body.rows].sort((one, two) => {
    const a = keys.get(one), b = keys.get(two);
    if (a === null || b === null) return (a === null) - (b === null);
    return way === 'ascending' ? compare(a, b) : compare(b, a);
  });
  for (const other of head.parentNode.children) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', way);
  body.append(...rows);
}

for (const button of document.querySelectorAll('thead button')) {
  button.addEventListener('click', () => sortBy(button.parentNode));
}

// Curves.

const data = JSON.parse(document.getElementById('data').textContent);
const DASHES = ['', '7 3', '2 3', '9 3 2 3'];  // the six colours repeat with dashes
const COLOURS = 6, MOST_TOLD = 10;
const hidden = new Set();  // groups
const logs = new Set();  // metrics on a logarithmic axis

function sums(steps) {
  let total = 0;
  return steps.map((step) => (total += step));
}

for (const figure of data.figures) {
  for (const line of [...figure.lines, ...figure.bands]) {
    line.steps = sums(line.steps);
    if (line.smooth) line.smooth.steps = sums(line.smooth.steps);
  }
  if (figure.log) logs.add(figure.metric);
}

function make(name, attributes, ...children) {
  const svg = ['svg', 'g', 'path', 'line', 'text', 'circle', 'rect'].includes(name);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const colour = (group) => `c${group % COLOURS}`;
const dash = (group) => DASHES[Math.floor(group / COLOURS) % DASHES.length];

function swatch(group) {
  const line = make('line', {x1: 0, y1: 6, x2: 26, y2: 6, class: `curve ${colour(group)}`, 'stroke-dasharray': dash(group)});
  return make('svg', {width: 26, height: 12, 'aria-hidden': 'true'}, line);
}

// A tick, with enough digits to differ from the next one, which is `step` away.
function short(value, step) {
  if (value === 0) return '0';
  const size = Math.abs(value), digits = Math.max(1, Math.floor(Math.log10(size)) - Math.floor(Math.log10(step)) + 1);
  const plain = (one) => Number(one.toPrecision(Math.min(digits, 12)));
  for (const [unit, sign] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (size >= unit) return `${plain(value / unit)}${sign}`;
  }
  return size < 1e-3 ? plain(value).toExponential() : String(plain(value));
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.ceil(low / step - 1e-9), found = [];
  for (let place = first; place * step <= high + step * 1e-9; place++) found.push(Number((place * step).toPrecision(12)));
  return found.map((tick) => [tick, short(tick, step)]);
}

function logTicks(low, high) {
  const found = [], decades = Math.log10(high / low);
  const wanted = decades > 6 ? [1] : decades > 1.5 ? [1, 3] : [1, 1.5, 2, 3, 4, 5, 7];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const one of wanted) {
      const tick = Number((one * 10 ** power).toPrecision(6));
      if (tick >= low && tick <= high) found.push([tick, short(tick, tick / 10)]);
    }
  }
  return found;
}

// How much of the x axis a step is, in the mean of a run or of a group's runs; null where it is not known.
const UNITS = {steps: 'step', tokens: 'tokens', seconds: 'time'};
function pace(runs, axis) {
  if (axis === 'steps') return 1;
  const known = runs.map((run) => run[axis]).filter((one) => one > 0);
  return known.length === runs.length ? known.reduce((a, b) => a + b) / known.length : null;
}

// A line along the x axis, within the chosen range.
function along(line, by, range) {
  const xs = line.steps.map((step) => step * by);
  const places = [...xs.keys()].filter((place) => !range || (xs[place] >= range[0] && xs[place] <= range[1]));
  const of = (values) => values && places.map((place) => values[place]);
  return places.length ? {steps: of(xs), values: of(line.values), deviation: of(line.deviation)} : null;
}

function clock(seconds) {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  return parts.map((one, place) => (place ? String(one).padStart(2, '0') : one)).join(':');
}

// The parts of a figure: for each curve its main line, a band, and faint lines behind it that show its spikes.
function shown(figure, state, range) {
  const found = [];
  const banded = new Set(state.together ? figure.bands.map((band) => band.group) : []);
  for (const band of figure.bands) {
    if (!banded.has(band.group) || hidden.has(band.group)) continue;
    const own = figure.lines.filter((line) => data.runs[line.run].group === band.group);
    const faint = state.smooth ? own.filter((line) => line.smooth) : [];
    found.push({group: band.group, name: `${data.groups[band.group].name} (n = ${band.n})`, main: band, band, faint});
  }
  for (const line of figure.lines) {
    const run = data.runs[line.run];
    if (hidden.has(run.group) || banded.has(run.group)) continue;
    const smooth = state.smooth && line.smooth;
    found.push({group: run.group, name: run.name, main: smooth || line, faint: smooth ? [line] : []});
  }
  for (const curve of found) {
    const runs = curve.band ? data.runs.filter((run) => run.group === curve.group) : [data.runs.find((run) => run.name === curve.name)];
    const by = pace(runs, state.axis);
    const moved = by === null ? null : along(curve.main, by, range);
    Object.assign(curve, {
      main: moved, band: curve.band && moved, faint: moved ? curve.faint.map((line) => along(line, by, range)).filter(Boolean) : []});
  }
  return found.filter((curve) => curve.main).sort((one, two) => one.group - two.group);
}

function bounds(curves, log) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  const take = (steps, values, add) => {
    left = Math.min(left, steps[0]);
    right = Math.max(right, steps[steps.length - 1]);
    values.forEach((value, place) => {
      for (const one of add ? [value - add[place], value + add[place]] : [value]) {
        if (log && one <= 0) continue;
        low = Math.min(low, one);
        high = Math.max(high, one);
      }
    });
  };
  for (const curve of curves) {
    take(curve.main.steps, curve.main.values, curve.band && curve.band.deviation);
    for (const line of curve.faint) take(line.steps, line.values);
  }
  const alike = !(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)));  // values that differ only by rounding
  if (alike) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  if (left === right) [left, right] = [left - 1, right + 1];
  if (log) return {left, right, low, high};
  const room = 0.04 * (high - low);
  return {left, right, low: low >= 0 && low < room ? 0 : low - room, high: high + room};
}

function path(steps, values, x, y) {
  let text = '', pen = 'M';
  for (let place = 0; place < steps.length; place++) {
    const height = y(values[place]);
    if (!Number.isFinite(height)) { pen = 'M'; continue; }
    text += `${pen}${x(steps[place]).toFixed(1)} ${height.toFixed(1)}`;
    pen = 'L';
  }
  return text;
}

function bandPath(band, x, y, floor) {
  const edge = (sign) => band.values.map((value, place) => Math.max(value + sign * band.deviation[place], floor));
  const back = [...band.steps].reverse();
  return `${path(band.steps, edge(1), x, y)}${path(back, edge(-1).reverse(), x, y).replace('M', 'L')}Z`;
}

function draw(card, width, state) {
  const figure = card.figure, log = logs.has(figure.metric);
  const curves = shown(figure, state, card.range);
  card.plot.replaceChildren();
  card.nothing.hidden = curves.length > 0;
  card.plot.toggleAttribute('hidden', curves.length === 0);
  card.curves = curves;
  hide(card);
  if (!curves.length) return;
  const height = Math.round(Math.max(220, Math.min(width * 0.56, 360)));
  const edge = {left: 54, right: 26, top: 10, bottom: 40};
  const at = bounds(curves, log);
  const scale = log ? Math.log : (value) => value;
  const [low, high] = [scale(at.low), scale(at.high)];
  const x = (step) => edge.left + ((step - at.left) / (at.right - at.left)) * (width - edge.left - edge.right);
  const y = (value) => edge.top + ((high - scale(value)) / (high - low)) * (height - edge.top - edge.bottom);
  Object.assign(card, {x, y, at, edge, width, height});
  card.plot.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const bottom = height - edge.bottom;
  const heights = log ? logTicks(at.low, at.high) : [];
  for (const [tick, label] of heights.length > 1 ? heights : ticks(at.low, at.high, 6)) {
    const place = y(tick);
    card.plot.append(
      make('line', {x1: edge.left, x2: width - edge.right, y1: place, y2: place, class: 'grid'}),
      make('text', {x: edge.left - 6, y: place + 4, 'text-anchor': 'end'}, label));
  }
  card.plot.append(make('line', {x1: edge.left, x2: width - edge.right, y1: bottom, y2: bottom, class: 'axis'}));
  const across = ticks(at.left, at.right, Math.min(8, Math.max(3, Math.floor(width / 70))));
  for (const [tick, label] of across) {
    card.plot.append(
      make('line', {x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4, class: 'axis'}),
      make('text', {x: x(tick), y: bottom + 18, 'text-anchor': 'middle'}, state.axis === 'seconds' ? clock(tick) : label));
  }
  card.plot.append(make('text', {x: width - edge.right, y: bottom + 34, 'text-anchor': 'end'}, UNITS[state.axis]));
  for (const layer of ['faint', 'band', 'main']) {
    for (const curve of curves) {
      for (const line of [curve[layer] ?? []].flat()) card.plot.append(drawn(card, curve, layer, line));
    }
  }
  card.plot.append(make('g', {class: 'cursor'}));
}

function drawn(card, curve, layer, line) {
  const {x, y, at} = card;
  const group = make('g', {class: colour(curve.group), 'data-group': curve.group});
  if (layer === 'band') {
    group.append(make('path', {class: 'band', d: bandPath(line, x, y, logs.has(card.figure.metric) ? at.low : -Infinity)}));
    return group;
  }
  const d = path(line.steps, line.values, x, y);
  group.append(make('path', layer === 'faint' ? {class: 'raw', d} : {class: 'curve', d, 'stroke-dasharray': dash(curve.group)}));
  if (layer === 'main' && card.figure.dots) {
    line.steps.forEach((step, place) => {
      const height = y(line.values[place]);
      if (Number.isFinite(height)) group.append(make('circle', {class: 'dot', cx: x(step).toFixed(1), cy: height.toFixed(1), r: 2.5}));
    });
  }
  return group;
}

// The values under the pointer, or at the step that the arrow keys select.

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  return step - steps[low] <= steps[high] - step ? low : high;
}

function tell(card, step) {
  if (!card.curves.length) return;
  card.step = Math.max(card.at.left, Math.min(card.at.right, step));
  const found = card.curves.filter(({main}) => card.step >= main.steps[0] && card.step <= main.steps[main.steps.length - 1]);
  const told = found.map((curve) => {
    const place = nearest(curve.main.steps, card.step);
    return {curve, step: curve.main.steps[place], value: curve.main.values[place], more: curve.band && curve.band.deviation[place]};
  });
  const cursor = card.plot.querySelector('.cursor'), across = card.x(card.step);
  cursor.replaceChildren(
    make('line', {x1: across, x2: across, y1: card.edge.top, y2: card.height - card.edge.bottom, class: 'guide'}),
    ...told.filter(({value}) => Number.isFinite(card.y(value))).map(({curve, step, value}) => (
      make('circle', {class: `dot ${colour(curve.group)}`, cx: card.x(step), cy: card.y(value), r: 4}))));
  const exact = told.length && told.every((one) => one.step === told[0].step);
  const rows = told.slice(0, MOST_TOLD).map(({curve, value, more}) => make('div', {}, swatch(curve.group), curve.name,
    make('b', {}, `${Number(value.toPrecision(4))}${more ? ` ± ${Number(more.toPrecision(2))}` : ''}`)));
  const at = exact ? told[0].step : card.step;
  const title = `${UNITS[state.axis]} ${exact ? '' : '≈ '}${state.axis === 'seconds' ? clock(at) : Math.round(at).toLocaleString('en')}`;
  card.readout.replaceChildren(make('div', {}, title), ...rows);
  if (told.length > MOST_TOLD) card.readout.append(make('div', {}, `and ${told.length - MOST_TOLD} more`));
  card.readout.hidden = false;
  const ratio = card.plot.clientWidth / card.width, place = across * ratio;
  const room = card.readout.offsetWidth + 14;
  const left = place + room <= card.plot.clientWidth ? place + 14 : Math.max(0, place - room);
  card.readout.style.left = `${left}px`;
  const above = card.plot.getBoundingClientRect().top - card.node.getBoundingClientRect().top;
  card.readout.style.top = `${above + card.edge.top}px`;
}

function hide(card) {
  card.readout.hidden = true;
  const cursor = card.plot.querySelector('.cursor');
  if (cursor) cursor.replaceChildren();
}

// The numbers of all curves of a figure; a long curve has the least and the largest value of each segment.
function numbers(figure) {
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = figure.lines.flatMap(({run, steps, values}) => steps.map((step, place) => {
    const {name, tokens, seconds} = data.runs[run];
    return [quoted(name), step, tokens ? Math.round(step * tokens) : '', seconds ? (step * seconds).toFixed(1) : '', values[place]].join(',');
  }));
  return [`run,step,tokens,seconds,${quoted(figure.metric)}`, ...lines, ''].join('\n');
}

function cardOf(figure) {
  const plot = make('svg', {class: 'plot', tabindex: 0, role: 'img', 'aria-label': `${figure.metric} over steps`});
  const scale = make('button', {type: 'button', class: 'scale', 'aria-pressed': logs.has(figure.metric)});
  const readout = make('div', {class: 'readout', hidden: ''});
  const nothing = make('p', {class: 'nothing', hidden: ''}, 'No curve is shown.');
  const table = make('a', {class: 'scale', download: `${figure.metric.replaceAll('/', '_')}.csv`, 'aria-label': `numbers of ${figure.metric}`, href: '#'}, 'csv');
  table.addEventListener('click', () => { table.href = `data:text/csv;charset=utf-8,${encodeURIComponent(numbers(figure))}`; });
  const caption = make('figcaption', {}, make('span', {}, figure.metric), table, scale);
  const card = {figure, plot, readout, nothing, curves: [], node: make('figure', {}, caption, plot, nothing, readout)};
  const label = () => {
    scale.textContent = logs.has(figure.metric) ? 'logarithmic' : 'linear';
    scale.setAttribute('aria-label', `axis of ${figure.metric}: ${scale.textContent}; switch`);
  };
  label();
  scale.addEventListener('click', () => {
    if (!logs.delete(figure.metric)) logs.add(figure.metric);
    label();
    redraw();
  });
  const stepAt = (event) => {
    const box = plot.getBoundingClientRect(), across = ((event.clientX - box.left) / box.width) * card.width;
    const share = (across - card.edge.left) / (card.width - card.edge.left - card.edge.right);
    return card.at.left + share * (card.at.right - card.at.left);
  };
  let start = null;
  plot.addEventListener('pointermove', (event) => {
    tell(card, stepAt(event));
    if (start === null || !card.curves.length) return;
    const [a, b] = [card.x(start), card.x(stepAt(event))].sort((one, two) => one - two);
    const box = {class: 'zoom', x: a, width: b - a, y: card.edge.top, height: card.height - card.edge.top - card.edge.bottom};
    plot.querySelector('.cursor').append(make('rect', box));
  });
  plot.addEventListener('pointerdown', (event) => { start = stepAt(event); tell(card, start); });
  plot.addEventListener('pointerup', (event) => {
    const range = [start, stepAt(event)].sort((one, two) => one - two);
    const wide = start !== null && card.x(range[1]) - card.x(range[0]) > 8;
    start = null;
    if (wide && shown(figure, state, range).length) { card.range = range; redraw(); }
  });
  plot.addEventListener('dblclick', () => { card.range = null; redraw(); });
  plot.addEventListener('pointerleave', () => { start = null; hide(card); });
  plot.addEventListener('blur', () => hide(card));
  plot.addEventListener('keydown', (event) => {
    const way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!way || !card.curves.length) return;
    event.preventDefault();
    tell(card, (card.step ?? card.at.left) + (way * (card.at.right - card.at.left)) / 50);
  });
  return card;
}

const place = document.getElementById('figures'), more = document.getElementById('more');
const cards = place ? data.figures.map(cardOf) : [];
const state = {together: false, smooth: true, axis: 'steps'};

function redraw() {
  for (const card of cards) if (card.node.clientWidth) draw(card, Math.round(card.node.clientWidth), state);
}

function press(button, group, on) {
  if (on) hidden.delete(group); else hidden.add(group);
  button.setAttribute('aria-pressed', String(on));
}

function emphasise(group) {
  for (const one of document.querySelectorAll('.plot [data-group]')) {
    one.classList.toggle('dim', group !== null && Number(one.dataset.group) !== group);
  }
}

function controls() {
  const buttons = data.groups.map((group, number) => {
    const name = group.n > 1 ? `${group.name} (${group.n} runs)` : group.name;
    const button = make('button', {type: 'button', 'aria-pressed': 'true'}, swatch(number), name);
    button.addEventListener('click', () => { press(button, number, hidden.has(number)); redraw(); });
    for (const event of ['mouseenter', 'focus']) button.addEventListener(event, () => emphasise(hidden.has(number) ? null : number));
    for (const event of ['mouseleave', 'blur']) button.addEventListener(event, () => emphasise(null));
    return button;
  });
  document.getElementById('legend').append(...buttons);
  const all = (on) => () => { buttons.forEach((button, number) => press(button, number, on)); redraw(); };
  document.getElementById('every').addEventListener('click', all(true));
  document.getElementById('none').addEventListener('click', all(false));
  const has = {
    together: data.figures.some((figure) => figure.bands.length),
    smooth: data.figures.some((figure) => figure.lines.some((line) => line.smooth)),
  };
  for (const name of ['together', 'smooth']) {
    const box = document.getElementById(name);
    document.getElementById(`${name}-label`).hidden = !has[name];
    state[name] = box.checked = has[name];
    box.addEventListener('change', () => { state[name] = box.checked; redraw(); });
  }
  const axis = document.getElementById('axis');
  for (const option of axis.options) option.disabled = !data.runs.some((run) => pace([run], option.value) !== null);
  axis.addEventListener('change', () => {
    state.axis = axis.value;
    for (const card of cards) Object.assign(card, {range: null, step: undefined});
    redraw();
  });
  document.getElementById('controls').hidden = false;
}

if (place) {
  controls();
  const rare = cards.filter((card) => card.figure.rare);
  place.append(...cards.filter((card) => !card.figure.rare).map((card) => card.node));
  more.querySelector('.figures').append(...rare.map((card) => card.node));
  more.querySelector('summary').textContent = `${rare.length} more that fewer than half of the runs have`;
  more.hidden = rare.length === 0;
  more.addEventListener('toggle', redraw);
  redraw();
  let before = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth !== before) { before = place.clientWidth; redraw(); }
  }).observe(place);
}

window.addEventListener('beforeprint', () => {
  for (const one of document.querySelectorAll('details')) one.open = true;
  redraw();
});
