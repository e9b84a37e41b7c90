// What a point says: by pointer, by tap, and by the arrow keys on a focused chart.

const tip = document.getElementById("tip");

function hideTip() { tip.hidden = true; }

function showTip(hit, box, width) {
  tip.replaceChildren(...hit.point.tell());
  tip.style.setProperty("--hue", hit.look.hue);
  tip.hidden = false;
  const scaleOf = box.width / width;
  const x = box.left + hit.px * scaleOf, y = box.top + hit.py * scaleOf;
  const [w, h] = [tip.offsetWidth, tip.offsetHeight];
  const wide = document.documentElement.clientWidth;
  const left = Math.min(Math.max(8, x + 14 + w > wide ? x - w - 14 : x + 14), wide - w - 8);
  const above = y - h - 14;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : Math.min(y + 16, window.innerHeight - h - 8)}px`;
}

function listen(picture, layer, hot, width) {
  let chosen = -1;
  const order = hot.map((hit, k) => k).filter((k) => !hot[k].faint);
  const ring = (hit) => {
    layer.querySelector(".ring")?.remove();
    if (!hit) return;
    const circle = shape("circle", { class: "ring", cx: hit.px, cy: hit.py, r: 8, fill: "none", "stroke-width": 2 });
    circle.style.stroke = hit.look.hue;
    layer.append(circle);
  };
  const tell = (hit) => { ring(hit); if (hit) showTip(hit, picture.getBoundingClientRect(), width); else hideTip(); };
  const near = (event) => {
    const box = picture.getBoundingClientRect();
    const [px, py] = [((event.clientX - box.left) * width) / box.width, ((event.clientY - box.top) * width) / box.width];
    let best = null, least = event.pointerType === "touch" ? 40 : 26;
    for (const hit of hot) {
      // A point of the frontier wins over a faint one beside it.
      const far = Math.hypot(hit.px - px, hit.py - py) + (hit.faint ? 5 : 0);
      if (far < least) { least = far; best = hit; }
    }
    return best;
  };
  picture.addEventListener("pointermove", (event) => tell(near(event)));
  picture.addEventListener("pointerdown", (event) => tell(near(event)));
  picture.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") tell(null); });
  picture.addEventListener("blur", () => tell(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") tell(null);
    if (!step || !order.length) return;
    event.preventDefault();
    chosen = (chosen + step + order.length + (chosen < 0 && step < 0 ? 1 : 0)) % order.length;
    tell(hot[order[chosen]]);
  });
}
