"use strict";
// Draws the figures of an audit from the data in this file. Text from the data reaches the page only as text nodes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const models = data.about.models;
  const byId = (id) => document.getElementById(id);
  const tip = byId("tip");

  function element(name, attributes = {}, ...children) {
    const svg = ["svg", "g", "line", "rect", "circle", "text", "title"].includes(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  const colour = (model) => (models.includes(model) ? `var(--m${models.indexOf(model) % 12})` : "var(--soft)");
  const shown = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
  const unique = (values) => [...new Set(values)];

  function options(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => element("option", { value }, text)));
  }

  function hint(node, text) {
    node.append(element("title", {}, text));
    node.addEventListener("pointermove", (event) => {
      tip.textContent = text;
      tip.hidden = false;
      const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    });
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  // A round step such that an axis has about `count` of them.
  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) out.push(i * step);
    return { values: out, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  function extent(rows) {
    const values = rows.flatMap((row) => [row.value, row.low, row.high, row.independent, row.chance])
      .filter((value) => value !== null);
    const low = Math.min(0, ...values), high = Math.max(...values, low + 0.01);
    return [low - 0.03 * (high - low), high + 0.03 * (high - low)];
  }

  // Rows of dots with intervals: `lines` are {label, row, colour, group}, drawn from top to bottom.
  function dots(panel, { title, lines, range: [low, high], axis, wholes = [] }) {
    panel.append(element("h3", {}, title));
    const width = Math.max(240, panel.clientWidth - 36);
    const height = lines.length > 15 ? 15 : 24;
    const longest = Math.max(...lines.map((line) => line.label.length));
    const margin = Math.min(width * 0.42, Math.max(40, 7.2 * longest + 12));
    const room = Math.floor((margin - 8) / 7.2);
    let y = 8;
    const svg = element("svg", { role: "img", "aria-label": `${title}: ${lines.map((line) =>
      `${line.label} ${shown(line.row.value)}`).join("; ")}` });
    const place = (value) => margin + ((value - low) / (high - low)) * (width - margin - 10);
    const body = element("g");
    for (const line of lines) {
      if (line.group) y += 6;
      const mid = y + height / 2 - 1, row = line.row;
      if (row.independent !== null) {
        const from = place(low);
        body.append(element("rect", { class: "band", x: from, y: y + 1, width: Math.max(0, place(row.independent) - from), height: height - 4 }));
      }
      const short = line.label.length > room ? `${line.label.slice(0, Math.max(1, room - 1))}…` : line.label;
      body.append(element("text", { x: margin - 8, y: mid + 4, "text-anchor": "end" }, short));
      const mark = element("g", { class: "mark", "data-value": row.value ?? "", "data-model": row.model });
      if (row.low !== null) {
        mark.append(element("line", { x1: place(row.low), x2: place(row.high), y1: mid, y2: mid, stroke: line.colour, "stroke-width": 3 }));
      }
      if (row.value !== null) mark.append(element("circle", { cx: place(row.value), cy: mid, r: height > 15 ? 5.5 : 4.5, fill: line.colour }));
      mark.append(element("rect", { x: margin, y, width: width - margin, height: height - 2, fill: "transparent" }));
      const parts = [`${row.model}${row.level ? ` · ${row.level}` : ""}: ${shown(row.value)}`];
      if (row.low !== null) parts.push(`95 % interval ${shown(row.low)} to ${shown(row.high)}`);
      if (row.independent !== null) parts.push(`independent data: below ${shown(row.independent)}`);
      if (row.p !== null) parts.push(`p = ${shown(row.p)}`);
      hint(mark, [...parts, `n = ${row.n}`].join("\n"));
      body.append(mark);
      y += height;
    }
    const scale = ticks(low, high, Math.max(2, (width - margin) / 55));
    for (const value of scale.values) {
      const x = place(value);
      svg.append(element("line", { class: "axis", x1: x, x2: x, y1: 4, y2: y + 4 }));
      svg.append(element("text", { class: "soft", x, y: y + 18, "text-anchor": "middle" }, value.toFixed(scale.digits).replace("-", "−")));
    }
    svg.append(body);
    for (const whole of wholes) {
      svg.append(element("line", { class: "whole", x1: place(whole.value), x2: place(whole.value), y1: 4, y2: y + 2, stroke: whole.colour, "stroke-width": 1.5 }));
    }
    svg.append(element("text", { class: "soft", x: width - 8, y: y + 36, "text-anchor": "end" }, axis));
    svg.setAttribute("viewBox", `0 0 ${width} ${y + 42}`);
    panel.append(svg);
  }

  // Panels are placed empty first: how wide each becomes decides how it is drawn.
  function fill(container, charts) {
    const panels = charts.map(({ title, lines }) => element("figure", { class: lines.length > 15 ? "panel wide" : "panel", "data-export": title }));
    container.replaceChildren(...panels);
    panels.forEach((panel, i) => { dots(panel, charts[i]); exportable(panel); });
  }

  function modelKey(container) {
    container.replaceChildren(...models.map((model) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = colour(model);
      return element("span", { class: "model" }, swatch, model);
    }));
  }

  const family = (statistic) => statistic.replace(/^paper_.*/, "paper").replace(/_probe_.*/, "_probe");
  const families = [
    ["residual_dcor_sqr", "dcor² beyond the label"], ["within_group_dcor_sqr", "dcor² within label groups"],
    ["dcor_sqr", "dcor², all people together"],
    ["partial_dcor", "partial distance correlation"], ["paper", "the paper's measure"],
    ["linear_probe", "linear probe"], ["nonlinear_probe", "non-linear probe"],
  ];
  const measured = data.rows.filter((row) => row.confound && row.value !== null && families.some(([name]) => name === family(row.statistic)));

  function drawLeft() {
    const chosen = byId("left-measure").value, space = byId("left-space").value;
    const rows = measured.filter((row) => family(row.statistic) === chosen && row.space === space);
    const same = new Set(rows.map((row) => row.statistic)).size === 1;
    const confounds = data.about.confounds.map(({ name }) => [name, rows.filter((row) => row.confound === name)]);
    fill(byId("left-charts"), confounds.filter(([, part]) => part.length).map(([title, part]) => ({
      title,
      lines: part.map((row) => ({ label: row.model, row, colour: colour(row.model) })),
      range: extent(same ? rows : part),
      axis: data.words[part[0].statistic].axis,
    })));
  }

  const performed = data.rows.filter((row) => ["accuracy", "balanced_accuracy", "auc", "r2", "mean_absolute_error", "brier_score", "calibration_error"].includes(row.statistic));

  function drawPerformance() {
    const chosen = byId("performance-measure").value;
    const rows = performed.filter((row) => row.statistic === chosen);
    const wholes = rows.filter((row) => !row.confound).map((row) => ({ value: row.value, colour: colour(row.model) }));
    const overall = rows.filter((row) => !row.confound).map((row) => ({ label: row.model, row, colour: colour(row.model) }));
    const bounded = ["auc", "accuracy", "balanced_accuracy"].includes(chosen);
    const lowest = Math.min(0.5, ...rows.flatMap((row) => [row.value ?? 1, row.low ?? 1]));
    const range = bounded ? [Math.floor(10 * lowest) / 10, 1.02] : extent(rows);
    const axis = data.words[chosen].axis;
    const charts = [{ title: "all rows", lines: overall, range, axis }];
    for (const { name } of data.about.confounds) {
      const part = rows.filter((row) => row.confound === name);
      const lines = unique(part.map((row) => row.level)).flatMap((level) => part.filter((row) => row.level === level)
        .map((row, i) => ({ label: i === 0 ? level : "", row, colour: colour(row.model), group: i === 0 })));
      if (lines.length) charts.push({ title: name, lines, range, axis, wholes });
    }
    fill(byId("performance-charts"), charts);
  }

  // Hues a golden angle apart, two lightnesses: neighbouring levels differ, also of twenty sites.
  const levelColour = (code) => `hsl(${(code * 137.508 + 215) % 360} 65% ${code % 2 ? 62 : 46}%)`;
  const ramp = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  function rampColour(share) {
    const at = Math.min(0.9999, Math.max(0, share)) * (ramp.length - 1), i = Math.floor(at);
    return `rgb(${ramp[i].map((from, k) => Math.round(from + (at - i) * (ramp[i + 1][k] - from))).join(" ")})`;
  }

  function colouring(column) {
    if (column.kind !== "numeric") return (value) => (value === null ? "var(--soft)" : levelColour(value));
    const values = column.values.filter((value) => value !== null);
    const low = Math.min(...values), high = Math.max(...values);
    return (value) => (value === null ? "var(--soft)" : rampColour((value - low) / (high - low || 1)));
  }

  const said = (column, value) => `${column.name}: ${value === null ? "missing" : column.levels[value] ?? value}`;

  function drawMaps() {
    byId("maps").replaceChildren(...data.points.maps.map((map) => {
      const panel = element("figure", { class: "panel" }, element("h3", {}, map.model));
      const spans = [map.x, map.y].map((values) => [Math.min(...values), Math.max(...values)]);
      const to = (value, [low, high]) => 6 + (308 * (value - low)) / (high - low || 1);
      const group = element("g", { class: "points" });
      map.x.forEach((x, i) => {
        const circle = element("circle", { cx: to(x, spans[0]).toFixed(1), cy: (320 - to(map.y[i], spans[1])).toFixed(1), r: 3 });
        hint(circle, data.points.columns.map((column) => said(column, column.values[i])).join("\n"));
        group.append(circle);
      });
      panel.append(element("svg", { viewBox: "0 0 320 320", role: "img", "aria-label": `${map.method} of ${map.model}` }, group));
      panel.append(element("p", { class: "caption" }, `${map.method}, ${data.points.space}, ${map.x.length} rows`));
      return panel;
    }));
  }

  function paint() {
    const column = data.points.columns.find((item) => item.name === byId("map-colour").value);
    const fill = colouring(column);
    for (const group of document.querySelectorAll(".points")) {
      [...group.children].forEach((circle, i) => {
        circle.setAttribute("fill", fill(column.values[i]));
        circle.classList.remove("dim");
      });
    }
    legend(column);
  }

  function legend(column) {
    const box = byId("map-legend");
    if (column.kind === "numeric") {
      const values = column.values.filter((value) => value !== null);
      const bar = element("span", { class: "ramp" });
      bar.style.background = `linear-gradient(90deg, ${ramp.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
      box.replaceChildren(String(Math.min(...values)), bar, String(Math.max(...values)));
      return;
    }
    box.replaceChildren(...column.levels.map((level, code) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = levelColour(code);
      const button = element("button", { type: "button", "aria-pressed": "false" }, swatch, level);
      button.addEventListener("click", () => point(column, code, button));
      return button;
    }));
  }

  function point(column, code, button) {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of byId("map-legend").querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(on));
    for (const group of document.querySelectorAll(".points")) {
      [...group.children].forEach((circle, i) => circle.classList.toggle("dim", on && column.values[i] !== code));
    }
  }

  // A figure as a file of its own: colours and fonts of the page are written into a copy of the SVG.
  function drawn(panel) {
    const source = panel.querySelector("svg"), copy = source.cloneNode(true);
    const box = source.viewBox.baseVal;
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    const from = [source, ...source.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((node, i) => {
      const style = getComputedStyle(node);
      for (const key of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "opacity"]) {
        to[i].style.setProperty(key, style.getPropertyValue(key));
      }
    });
    const paper = element("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor });
    copy.prepend(paper);
    return [new XMLSerializer().serializeToString(copy), box.width, box.height];
  }

  function save(url, name) {
    const link = element("a", { href: url, download: name });
    link.click();
  }

  function exportable(panel) {
    const name = panel.dataset.export.replace(/[^\w-]+/g, "-");
    const url = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    const svg = element("button", { type: "button" }, "SVG"), png = element("button", { type: "button" }, "PNG");
    svg.addEventListener("click", () => save(url(drawn(panel)[0]), `${name}.svg`));
    png.addEventListener("click", () => {
      const [text, width, height] = drawn(panel), image = new Image();
      image.onload = () => {
        const canvas = element("canvas", { width: 3 * width, height: 3 * height });
        canvas.getContext("2d").drawImage(image, 0, 0, 3 * width, 3 * height);
        save(canvas.toDataURL("image/png"), `${name}.png`);
      };
      image.src = url(text);
    });
    panel.append(element("div", { class: "export" }, "Save as", svg, png));
  }

  function start() {
    const present = new Set(measured.map((row) => family(row.statistic)));
    options(byId("left-measure"), families.filter(([name]) => present.has(name)));
    const spaces = unique(measured.map((row) => row.space));
    options(byId("left-space"), spaces.map((space) => [space, space]));
    byId("left-space-label").hidden = spaces.length < 2;
    for (const id of ["left-measure", "left-space"]) byId(id).addEventListener("change", drawLeft);
    if (performed.length) {
      const statistics = unique(performed.map((row) => row.statistic));
      options(byId("performance-measure"), statistics.map((name) => [name, data.words[name].name]));
      byId("performance-measure").addEventListener("change", drawPerformance);
    }
    if (data.points) {
      options(byId("map-colour"), data.points.columns.map((column) => [column.name, column.name]));
      byId("map-colour").addEventListener("change", paint);
      drawMaps();
      paint();
    }
    byId("filter").addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase();
      for (const row of document.querySelectorAll(".numbers tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    if (performed.length) modelKey(byId("performance-models"));
    for (const panel of document.querySelectorAll("[data-export]:not(:has(.export))")) exportable(panel);
    const charts = () => { drawLeft(); if (performed.length) drawPerformance(); };
    charts();
    window.addEventListener("resize", charts);
    window.addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
  }

  start();
})();
