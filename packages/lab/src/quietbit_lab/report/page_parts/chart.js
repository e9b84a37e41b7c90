// Drawing: scales, ticks, axes, markers, lines and error bars as SVG, with pointer, tap and arrow keys.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function shape(name, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}

// Numbers for people. Bounds were rounded up before they came here: digits are never cut off again.
const number = (value, digits = 4) => String(Number(Number(value).toPrecision(digits)));
const percent = (value, digits = 1) => (100 * value).toFixed(digits) + " %";

function bytesShown(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (count >= 1000 && place < units.length - 1) { count /= 1000; place += 1; }
  return (place ? number(count, 3) : String(Math.round(count))) + " " + units[place];
}

function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw * 0.72) || raw;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, room) {
  const all = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) {
    for (const digit of [1, 2, 3, 5, 7]) all.push({ value: Number((digit * 10 ** p).toPrecision(6)), digit });
  }
  const inside = all.filter((t) => t.value >= low * 0.9999 && t.value <= high * 1.0001);
  // Labels need a share 1 / room of the axis each: decimal steps are uneven, so it is the narrowest that counts.
  const apart = (ticks) => ticks.every((t, k) => !k || Math.log(t.value / ticks[k - 1].value) * room >= Math.log(high / low));
  for (const kept of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const some = inside.filter((t) => kept.includes(t.digit));
    if (apart(some) && some.length >= 2) return some.map((t) => t.value);
  }
  const thin = [];
  for (const tick of inside) if (!thin.length || apart([thin[thin.length - 1], tick])) thin.push(tick);
  return thin.map((t) => t.value);
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log : (v) => v;
  const a = f(low), width = f(high) - a || 1;
  return (value) => from + ((f(value) - a) / width) * (to - from);
}

function markerPath(kind, x, y, r) {
  const point = (dx, dy) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`;
  const polygon = (pairs) => "M" + pairs.map(([dx, dy]) => point(dx, dy)).join("L") + "Z";
  if (kind === "square") return polygon([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]]);
  if (kind === "triangle") return polygon([[0, -1.2], [1.1, 0.8], [-1.1, 0.8]]);
  if (kind === "down") return polygon([[0, 1.2], [1.1, -0.8], [-1.1, -0.8]]);
  if (kind === "diamond") return polygon([[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]]);
  if (kind === "plus") return polygon([[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]]);
  if (kind === "cross") return polygon([[-1.1, -0.6], [-0.6, -1.1], [0, -0.5], [0.6, -1.1], [1.1, -0.6], [0.5, 0], [1.1, 0.6], [0.6, 1.1], [0, 0.5], [-0.6, 1.1], [-1.1, 0.6], [-0.5, 0]]);
  const d = (r * 2).toFixed(1);
  return `M${x - r},${y}a${r},${r} 0 1,0 ${d},0a${r},${r} 0 1,0 -${d},0Z`;
}

function swatch(look) {
  const icon = shape("svg", { width: 26, height: 14, "aria-hidden": "true", viewBox: "0 0 26 14" });
  const line = shape("path", { d: "M1,7H25", "stroke-width": 2, "stroke-dasharray": look.dash.join(" "), fill: "none" });
  line.style.stroke = look.hue;
  icon.append(line);
  if (look.mechanism !== "none") {
    const dot = shape("path", { d: markerPath(look.marker, 13, 7, 4.2) });
    dot.style.fill = look.hue;
    icon.append(dot);
  }
  return icon;
}

// A chart: `series` of {look, points: [{x, y, dev, tell}], cloud: [{x, y, tell}], level}, drawn to the host's width.
function drawChart(host, spec) {
  const width = Math.max(240, host.clientWidth || 600);
  const small = width < 560;
  const height = spec.height || Math.max(260, Math.min(430, Math.round(width * 0.52)));
  const points = spec.series.flatMap((s) => s.points.concat(s.cloud || []));
  const named = spec.named !== false && !small;
  const longest = Math.max(0, ...spec.series.map((s) => s.look.name.length));
  const edge = { top: spec.y.label ? 26 : 12, right: named ? Math.min(0.24 * width, 30 + 6.9 * longest) : 14, bottom: 46, left: spec.left || 50 };
  const [xLow, xHigh] = spec.x.domain || spread(points.map((p) => p.x), spec.x.log);
  const [yLow, yHigh] = spec.y.domain || spread(points.flatMap((p) => [p.y - (p.dev || 0), p.y + (p.dev || 0)]), false);
  const x = scale(xLow, xHigh, edge.left, width - edge.right, spec.x.log);
  const y = scale(yLow, yHigh, height - edge.bottom, edge.top, false);
  const picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": spec.label, tabindex: 0 });
  axes(picture, spec, { x, y, xLow, xHigh, yLow, yHigh, width, height, edge, small });
  if (spec.band) {
    const [a, b] = [x(Math.max(xLow, -spec.band)), x(Math.min(xHigh, spec.band))];
    picture.append(shape("rect", { class: "band", x: a, width: Math.max(1, b - a), y: edge.top, height: height - edge.top - edge.bottom }));
  }
  const hot = [];
  for (const one of spec.series) for (const p of one.cloud || []) {
    if (p.y < yLow || p.y > yHigh) continue;
    const dot = shape("circle", { cx: x(p.x).toFixed(1), cy: y(p.y).toFixed(1), r: 2.4, opacity: points.length > 400 ? 0.14 : 0.3 });
    dot.style.fill = one.look.hue;
    picture.append(dot);
    if (p.tell) hot.push({ px: x(p.x), py: y(p.y), point: p, look: one.look, faint: true });
  }
  const ends = [];
  if (spec.dodge) sideBySide(spec.series);
  for (const one of spec.series) drawSeries(picture, one, { x, y, width, edge }, hot, ends, spec);
  if (named) placeNames(picture, ends, { low: edge.top + 6, high: height - edge.bottom, right: width - edge.right, width, near: spec.near });
  const layer = shape("g", { "pointer-events": "none" });
  picture.append(layer);
  host.replaceChildren(picture);
  listen(picture, layer, hot, width);
  const shifts = new Map(spec.series.map((one) => [one.look, one.shift || 0]));
  return { layer, x, y, shifts, top: edge.top, bottom: height - edge.bottom, left: edge.left, right: width - edge.right };
}

function spread(values, log) {
  const low = Math.min(...values), high = Math.max(...values);
  if (log) return low === high ? [low / 2, high * 2] : [low * (low / high) ** 0.06, high * (high / low) ** 0.06];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

// Where lines share a value, points stand side by side by a few pixels, or their bars would hide each other.
function sideBySide(series) {
  const lines = series.filter((one) => one.level === undefined);
  const owners = new Map();
  for (const one of lines) for (const p of one.points) owners.set(p.x, (owners.get(p.x) || new Set()).add(one));
  const meet = lines.filter((one) => one.points.some((p) => owners.get(p.x).size > 1));
  meet.forEach((one, k) => { one.shift = Math.max(-9, Math.min(9, 5 * (k - (meet.length - 1) / 2))); });
}

function axes(picture, spec, at) {
  const { x, y, xLow, xHigh, yLow, yHigh, width, height, edge, small } = at;
  const bottom = height - edge.bottom, right = width - edge.right;
  for (const tick of niceTicks(yLow, yHigh, small || spec.height ? 4 : 6)) {
    const line = Math.round(y(tick)) + 0.5;
    picture.append(shape("path", { class: tick === 0 && yLow < 0 ? "base" : "grid", d: `M${edge.left},${line}H${right}` }));
    picture.append(shape("text", { class: "tick", x: edge.left - 8, y: line + 4, "text-anchor": "end" }, spec.y.format(tick)));
  }
  const room = Math.max(3, Math.floor((right - edge.left) / (spec.x.room || 64)));
  const ticks = spec.x.log ? logTicks(xLow, xHigh, room) : niceTicks(xLow, xHigh, room);
  for (const tick of ticks) {
    const line = Math.round(x(tick)) + 0.5;
    picture.append(shape("path", { class: "grid", d: `M${line},${edge.top}V${bottom}` }));
    picture.append(shape("text", { class: "tick", x: line, y: bottom + 17, "text-anchor": "middle" }, spec.x.format(tick)));
  }
  picture.append(shape("path", { class: "base", d: `M${edge.left},${Math.round(bottom) + 0.5}H${right}` }));
  const middle = (edge.left + right) / 2;
  const words = small && spec.x.short ? spec.x.short : spec.x.label;
  picture.append(shape("text", { class: "axis", x: middle, y: height - 8, "text-anchor": "middle" }, words));
  if (spec.y.label) picture.append(shape("text", { class: "axis", x: 4, y: 12 }, spec.y.label));
}

function drawSeries(picture, one, at, hot, ends, spec) {
  const { y, width, edge } = at;
  const { look } = one;
  const x = (value) => at.x(value) + (one.shift || 0);
  if (one.level !== undefined) {
    const line = shape("path", { d: `M${edge.left},${y(one.level)}H${width - edge.right}`, "stroke-width": 1.5, "stroke-dasharray": "6 4" });
    line.style.stroke = look.hue;
    picture.append(line);
    ends.push({ x: width - edge.right, y: y(one.level), look });
    hot.push({ px: width - edge.right - 30, py: y(one.level), point: one.points[0], look });
    return;
  }
  if (!one.points.length) return;
  const path = one.points.map((p, k) => `${k ? "L" : "M"}${x(p.x).toFixed(1)},${y(p.y).toFixed(1)}`).join("");
  const line = shape("path", { d: path, fill: "none", "stroke-width": spec.thin ? 1.8 : 2.2, "stroke-linejoin": "round", "stroke-dasharray": look.dash.join(" ") });
  line.style.stroke = look.hue;
  picture.append(line);
  if (spec.ribbon && one.points.some((p) => p.dev > 0)) {
    const side = (points, sign) => points.map((p) => `${x(p.x).toFixed(1)},${y(p.y + sign * p.dev).toFixed(1)}`).join("L");
    const ribbon = shape("path", { d: `M${side(one.points, 1)}L${side([...one.points].reverse(), -1)}Z`, opacity: 0.13 });
    ribbon.style.fill = look.hue;
    picture.append(ribbon);
  }
  for (const p of one.points) {
    if (spec.bars !== false && p.dev > 0) {
      const [px, top, low] = [x(p.x), y(p.y + p.dev), y(p.y - p.dev)];
      const bar = shape("path", { class: "bar", d: `M${px},${top}V${low}M${px - 4},${top}h8M${px - 4},${low}h8`, "stroke-width": 1.3, opacity: 0.75 });
      bar.style.stroke = look.hue;
      picture.append(bar);
    }
    if (!spec.dotless) {
      const dot = shape("path", { class: "dot", d: markerPath(look.marker, x(p.x), y(p.y), spec.thin ? 3.2 : 4.6), "stroke-width": 1.5 });
      dot.style.fill = look.hue;
      dot.style.stroke = "var(--card)";
      picture.append(dot);
    }
    if (p.tell) hot.push({ px: x(p.x), py: y(p.y), point: p, look });
  }
  const last = one.points[one.points.length - 1];
  ends.push({ x: x(last.x), y: y(last.y), look });
}

// Names of lines, moved apart where they would touch: in the right margin, or beside the last point (`near`).
function placeNames(picture, ends, room) {
  const margin = room.near ? null : room.right;
  // The legend has every name in full.
  const fitting = Math.max(8, Math.floor((room.width - room.right - 20) / 6.9));
  const short = (name) => (name.length > fitting && margin !== null ? name.slice(0, fitting - 1) + "…" : name);
  for (const end of ends) { end.from = margin === null ? end.x + 15 : margin + 12; end.to = end.from + 7 * end.look.name.length; }
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, k) => {
    const touched = ends.slice(0, k).filter((other) => other.from < end.to && end.from < other.to);
    end.at = Math.max(end.y, room.low, ...touched.map((other) => other.at + 16));
  });
  const over = Math.max(0, ...ends.map((end) => end.at)) - room.high;
  if (over > 0) for (const end of ends) end.at -= Math.min(over, Math.max(0, end.at - room.low));
  for (const end of ends) {
    if (margin !== null && (Math.abs(end.at - end.y) > 6 || margin - end.x > 40)) {
      const lead = shape("path", { d: `M${end.x + 7},${end.y}L${Math.max(end.x + 7, margin - 4)},${end.y}L${margin + 9},${end.at}`, fill: "none", "stroke-width": 1, "stroke-dasharray": "1 3", opacity: 0.7 });
      lead.style.stroke = end.look.hue;
      picture.append(lead);
    }
    const words = shape("text", { class: "halo", x: end.from, y: end.at + 4, "font-weight": 600 }, short(end.look.name));
    words.style.fill = end.look.hue;
    picture.append(words);
  }
}
