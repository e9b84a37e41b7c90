// The three charts over runs: the frontier, accuracy over bytes, and accuracy over rounds.

const MOST_FAINT = 1200; // faint points per chart; beyond it they would only be a stain

const settingsOf = (one, row) => Object.entries(one.settings[row.setting]).map(([name, value]) => `${name} ${value}`);

function spreadWords(row) {
  const seeds = `${row.seeds} ${row.seeds === 1 ? "seed" : "seeds"}`;
  return row.seeds > 1 ? `± ${(100 * row.deviation).toFixed(1)} over ${seeds}` : "one seed";
}

function guaranteeWords(one, row) {
  const claim = one.trusts[row.label];
  if (!claim) return "none: the run was not private.";
  if (row.epsilon === null) return "none: epsilon is not finite.";
  return claim.sentence.replace("{epsilon}", number(row.epsilon));
}

function tellRow(one, row) {
  return () => [
    make("b", {}, page.looks[row.label].name),
    make("div", {}, `${percent(row.accuracy)} ${spreadWords(row)}`),
    make("div", {}, `${row.epsilon === null ? "no privacy" : "epsilon ≤ " + number(row.epsilon)} after ${row.rounds} rounds`),
    make("div", {}, row.bytes === null ? "" : `${bytesShown(row.bytes)} per client per round`),
    make("div", { class: "soft" }, settingsOf(one, row).join(" · ")),
    make("div", { class: "soft" }, row.epsilon === null ? "" : `one ${one.unit}, ${one.adjacency} adjacency, delta ${one.delta_words}`),
  ];
}

const shownLabels = () => page.looks.map((_, k) => k).filter((k) => !page.hidden.has(k) && page.present.has(k));

function thinned(rows) {
  const every = Math.max(1, Math.ceil(rows.length / MOST_FAINT));
  return rows.filter((_, k) => k % every === 0);
}

function accuracyAxis(rows) {
  const highs = rows.map((row) => row.accuracy + row.deviation), lows = rows.map((row) => row.accuracy - row.deviation);
  const high = Math.max(0.05, ...highs), low = Math.min(1, ...lows);
  const room = Math.max(0.02, (high - low) * 0.08);
  // A little more below, where faint points are; those further down are left out.
  return { label: "test accuracy", domain: [Math.max(0, low - 2 * room), Math.min(1, high + room)], format: (v) => `${number(100 * v)} %` };
}

function drawFrontier() {
  const { one, rows, looks } = page;
  const labels = shownLabels();
  const usable = rows.filter((row) => row.chosen && labels.includes(row.label));
  if (!usable.length) return page.nothing("frontier", "Nothing is shown: switch a mechanism on above.");
  const series = labels.map((label) => {
    const own = usable.filter((row) => row.label === label);
    const secret = own.filter((row) => row.epsilon !== null);
    if (!secret.length) {
      const best = own.reduce((a, b) => (b.accuracy > a.accuracy ? b : a));
      return { look: looks[label], level: best.accuracy, points: [{ x: page.high, y: best.accuracy, tell: tellRow(one, best) }] };
    }
    const dot = (row) => ({ x: row.epsilon, y: row.accuracy, dev: row.deviation, tell: tellRow(one, row), row });
    const line = secret.filter((row) => row.chosen === 2).sort((a, b) => a.epsilon - b.epsilon);
    return { look: looks[label], points: line.map(dot), cloud: thinned(secret.filter((row) => row.chosen === 1)).map(dot) };
  });
  const log = page.high / page.low > 3;
  const wide = log ? (page.high / page.low) ** 0.04 : 1;
  const domain = log ? [page.low / wide, page.high * wide] : undefined;
  page.frontier = drawChart(document.getElementById("frontier"), {
    label: "Chart of test accuracy over epsilon, a line per mechanism; the arrow keys visit its points",
    x: { label: `epsilon of one ${one.unit}, ${one.adjacency} adjacency, delta ${one.delta_words}`, short: `epsilon (${one.unit}, ${one.adjacency})`, log, domain, format: (v) => number(v) },
    y: accuracyAxis(usable.filter((row) => row.chosen === 2)),
    series,
    dodge: true,
  });
  moveMarker();
}

function moveMarker() {
  const { frontier, target, best } = page;
  if (!frontier || !Number.isFinite(target)) return;
  const x = Math.min(Math.max(frontier.x(target), frontier.left), frontier.right);
  const line = shape("path", { class: "marker-line", d: `M${x},${frontier.top}V${frontier.bottom}` });
  const right = x > (frontier.left + frontier.right) / 2;
  const words = shape("text", { class: "marker-text halo", x: x + (right ? -7 : 7), y: frontier.bottom - 9, "text-anchor": right ? "end" : "start", id: "marker" }, `epsilon ≤ ${number(target)}`);
  const rings = shownLabels().filter((k) => best.get(k) && best.get(k).epsilon !== null).map((k) => {
    const ring = shape("circle", { class: "best", cx: frontier.x(best.get(k).epsilon) + (frontier.shifts.get(page.looks[k]) || 0), cy: frontier.y(best.get(k).accuracy), r: 10, fill: "none", "stroke-width": 2 });
    ring.style.stroke = page.looks[k].hue;
    return ring;
  });
  frontier.layer.replaceChildren(line, words, ...rings);
}

function drawBytes() {
  const { one, rows, looks, target, whole } = page;
  const labels = shownLabels();
  const size = (row) => (whole ? row.uplink : row.bytes);
  const usable = rows.filter((row) => row.chosen && labels.includes(row.label) && size(row) > 0 && (row.epsilon === null || row.epsilon <= target));
  if (!usable.length) return page.nothing("bytes", "No run is within the target, or none says how much it sent.");
  const shown = [];
  const series = labels.map((label) => {
    const own = usable.filter((row) => row.label === label).sort((a, b) => size(a) - size(b) || b.accuracy - a.accuracy);
    const line = [];
    for (const row of own) if (!line.length || row.accuracy > line[line.length - 1].accuracy) line.push(row);
    shown.push(...line);
    const dot = (row) => ({ x: size(row), y: row.accuracy, dev: row.deviation, tell: tellRow(one, row) });
    return { look: looks[label], points: line.map(dot), cloud: thinned(own.filter((row) => !line.includes(row))).map(dot) };
  }).filter((s) => s.points.length);
  const sizes = usable.map(size), low = Math.min(...sizes), high = Math.max(...sizes);
  const room = Math.max(1.35, (high / low) ** 0.12);
  drawChart(document.getElementById("bytes"), {
    label: "Chart of test accuracy over bytes sent, a line per mechanism; the arrow keys visit its points",
    x: { label: whole ? "bytes sent by all clients during the training" : "bytes that a client sends in a round", log: true, domain: [low / room, high * room], format: bytesShown, room: 84 },
    y: accuracyAxis(shown),
    series,
    near: true,
    dodge: true,
  });
}

function drawCurves() {
  const { one, rows, looks, best } = page;
  const series = shownLabels().map((label) => {
    const top = best.get(label);
    const own = top ? rows.filter((row) => row.label === label && row.setting === top.setting && !row.state && row.rounds <= top.rounds) : [];
    own.sort((a, b) => a.rounds - b.rounds);
    return { look: looks[label], rows: own, points: own.map((row) => ({ x: row.rounds, y: row.accuracy, dev: row.deviation, tell: tellRow(one, row) })) };
  }).filter((s) => s.points.length);
  const card = document.getElementById("curves-card");
  card.hidden = !page.rows.some((row) => !row.chosen && !row.state) && !series.some((s) => s.points.length > 1);
  if (card.hidden) return;
  if (!series.length) return page.nothing("curves", "No run is within the target.");
  const last = Math.max(...series.flatMap((s) => s.points.map((p) => p.x)));
  drawChart(document.getElementById("curves"), {
    label: "Chart of test accuracy over rounds, a line per mechanism; the arrow keys visit its points",
    x: { label: "round", domain: [0, last * 1.02], format: (v) => number(v) },
    y: accuracyAxis(series.flatMap((s) => s.rows)),
    series,
    bars: false,
    ribbon: true,
    thin: true,
  });
}
