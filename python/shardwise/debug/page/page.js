"use strict";
// Shows the figures of the page's data. Drawings come as SVG; a cell says in data-ranks which ranks it is about ("0-3,8"),
// a link in data-from and data-to, and both in a title of lines "name: value" what is to be known of them.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const main = document.getElementById("figures");
  const tip = document.getElementById("tip");
  let zoom = 1;
  let pinned = null; // runs of ranks that stay lit, or null

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // --- Runs of ranks: "0-3,8" as [[0, 3], [8, 8]] -------------------------------------------------------------------
  function runsOf(text) {
    return text.split(",").map((run) => {
      const [first, last] = run.split("-").map(Number);
      return [first, last ?? first];
    });
  }
  const meet = (some, others) => some.some(([a, b]) => others.some(([c, d]) => a <= d && c <= b));

  function light(text) {
    root.classList.toggle("has-lit", text !== null);
    if (text === null) return;
    const wanted = runsOf(text);
    for (const each of main.querySelectorAll("[data-ranks], [data-from]")) {
      const of = each.dataset.ranks ?? `${each.dataset.from},${each.dataset.to}`;
      each.classList.toggle("lit", meet(runsOf(of), wanted));
    }
  }

  function pin(text) {
    pinned = text === pinned ? null : text;
    light(pinned);
    const isNumber = pinned !== null && /^\d+$/.test(pinned);
    document.getElementById("rank").value = isNumber ? pinned : "";
  }

  // --- Drawings -----------------------------------------------------------------------------------------------------
  function resize(svg) {
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    svg.setAttribute("width", width * zoom);
    svg.setAttribute("height", height * zoom);
  }

  function draw(place, text) {
    place.innerHTML = text;
    for (const svg of place.querySelectorAll("svg")) resize(svg);
    for (const title of place.querySelectorAll("g > title")) {
      const cell = title.parentElement;
      cell.dataset.title = title.textContent;
      cell.setAttribute("tabindex", "0");
      cell.setAttribute("role", "img");
      cell.setAttribute("aria-label", title.textContent);
      title.remove(); // the browser's own would lie over ours
    }
    if (pinned !== null) light(pinned);
  }

  function tensor(figure) {
    const made = element("figure");
    if (figure.caption !== document.title) made.append(element("figcaption", { textContent: figure.caption }));
    const drawing = element("div", { className: "drawing" });
    const { slices } = figure;
    if (slices.length === 0) {
      made.append(element("p", { className: "note", textContent: "no elements, nothing to draw" }));
    } else if (slices.length === 1) {
      if (slices[0].heading) made.append(element("div", { className: "note", textContent: slices[0].heading }));
      draw(drawing, slices[0].svg);
    } else {
      const range = element("input", { type: "range", min: 0, max: slices.length - 1, value: 0, ariaLabel: "slice" });
      const before = element("button", { type: "button", textContent: "‹", title: "Slice before", className: "before" });
      const after = element("button", { type: "button", textContent: "›", title: "Next slice", className: "after" });
      const where = element("output", { ariaLive: "polite" });
      const show = (number) => {
        range.value = number;
        before.disabled = number === 0;
        after.disabled = number === slices.length - 1;
        where.textContent = `${slices[number].heading}   ${number + 1} of ${slices.length}`;
        draw(drawing, slices[number].svg);
      };
      range.addEventListener("input", () => show(Number(range.value)));
      before.addEventListener("click", () => show(Number(range.value) - 1));
      after.addEventListener("click", () => show(Number(range.value) + 1));
      made.append(element("div", { className: "stepper" }, before, range, after, where));
      show(0);
    }
    made.append(drawing);
    if (figure.note) made.append(element("div", { className: "note", textContent: figure.note }));
    return made;
  }

  function drawn(figure) {
    const drawing = element("div", { className: "drawing" });
    draw(drawing, figure.svg);
    return element("figure", {}, drawing);
  }

  // --- Tables -------------------------------------------------------------------------------------------------------
  function table(figure) {
    const hasBars = figure.lines.some((line) => line.fraction >= 0);
    const body = element("tbody");
    for (const line of figure.lines) body.append(...rowsOf(line, figure.heads, hasBars));
    const heads = figure.heads.map((head) => element("th", { textContent: head.text, className: head.number ? "number" : "" }));
    const made = element("figure", {});
    if (figure.lines.length > 0) {
      const head = element("thead", {}, element("tr", {}, ...heads, ...(hasBars ? [element("th")] : [])));
      made.append(element("div", { className: "drawing" }, element("table", {}, head, body)));
    }
    for (const note of figure.notes) made.append(element("div", { className: "note", textContent: note }));
    return made;
  }

  function rowsOf(line, heads, hasBars) {
    const row = element("tr");
    if (line.words.length === 0) {
      row.append(element("td"), element("td", { className: "note", colSpan: heads.length, textContent: line.note }));
      return [row];
    }
    line.words.forEach((word, i) => row.append(element("td", { textContent: word, className: heads[i].number ? "number" : "" })));
    if (line.rank >= 0) row.dataset.ranks = String(line.rank);
    if (line.color) {
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = line.color;
      row.firstChild.prepend(swatch);
    }
    if (hasBars) {
      const bar = element("span");
      bar.style.width = `${Math.max(0, line.fraction) * 100}%`;
      row.append(element("td", { className: "bar" }, bar));
    }
    if (line.detail < 0) return [row];
    const detail = element("tr", { className: "detail", hidden: true });
    row.className = "opens";
    row.tabIndex = 0;
    row.setAttribute("aria-expanded", "false");
    const toggle = () => {
      if (detail.cells.length === 0)
        detail.append(element("td", { colSpan: heads.length + 1 }, tensor(data.details[line.detail])));
      detail.hidden = !detail.hidden;
      row.setAttribute("aria-expanded", String(!detail.hidden));
    };
    row.addEventListener("click", toggle);
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        toggle();
      }
    });
    return [row, detail];
  }

  // --- What the mouse is over -----------------------------------------------------------------------------------------
  function showTip(cell, x, y) {
    const list = element("dl");
    for (const line of cell.dataset.title.split("\n")) {
      const at = line.indexOf(": ");
      list.append(element("dt", { textContent: line.slice(0, at) }), element("dd", { textContent: line.slice(at + 2) }));
    }
    tip.replaceChildren(list);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 16}px`;
  }

  let lastOver = null;
  function over(cell, x, y) {
    if (cell && "title" in cell.dataset) showTip(cell, x, y);
    else tip.hidden = true;
    if (cell === lastOver) return;
    lastOver = cell;
    if (pinned === null) light(cell?.dataset.ranks ?? null);
  }
  const cellAt = (node) => node.closest?.("[data-title], tr[data-ranks]") ?? null;
  main.addEventListener("pointermove", (event) => over(cellAt(event.target), event.clientX, event.clientY));
  main.addEventListener("pointerleave", () => over(null, 0, 0));
  main.addEventListener("focusin", (event) => {
    const cell = cellAt(event.target);
    if (!cell) return;
    const box = cell.getBoundingClientRect();
    over(cell, box.left + box.width / 2, box.top + box.height / 2);
  });
  main.addEventListener("focusout", () => over(null, 0, 0));
  main.addEventListener("click", (event) => {
    const ranks = cellAt(event.target)?.dataset.ranks;
    if (ranks !== undefined) pin(ranks);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pinned !== null) pin(pinned);
  });

  // --- Tools --------------------------------------------------------------------------------------------------------
  document.getElementById("rank").addEventListener("input", (event) => {
    pinned = /^\d+$/.test(event.target.value) ? event.target.value : null;
    light(pinned);
  });

  function setZoom(wanted) {
    zoom = Math.min(4, Math.max(0.25, wanted));
    document.getElementById("zoom-reset").textContent = `${Math.round(zoom * 100)}%`;
    for (const svg of main.querySelectorAll("svg")) resize(svg);
  }
  document.getElementById("zoom-in").addEventListener("click", () => setZoom(zoom * 1.25));
  document.getElementById("zoom-out").addEventListener("click", () => setZoom(zoom / 1.25));
  document.getElementById("zoom-reset").addEventListener("click", () => setZoom(1));
  main.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    setZoom(zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
  }, { passive: false });

  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });

  // --- The page -----------------------------------------------------------------------------------------------------
  const kinds = { tensor, mesh: drawn, traffic: drawn, table };
  for (const figure of data.figures) {
    const made = kinds[figure.kind](figure);
    if (figure.heading) made.prepend(element("h2", { textContent: figure.heading }));
    if (figure.beside && main.lastElementChild) main.lastElementChild.append(made);
    else main.append(element("div", { className: "row" }, made));
  }
})();
