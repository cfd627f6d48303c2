// Draws the charts it is told, and again whenever it is told new ones, in place: the nodes stay, so nothing
// flickers. A zoom (drag) holds for all charts and through every update until it is undone.
"use strict";

const board = document.getElementById("board");
const places = new Map(); // key → {figure, plot, title, undo, told, shown, live, near, span}
let zoom = null;
let following = false; // while one chart's zoom is carried over to the others

const CONFIG = { displayModeBar: false, doubleClick: false, scrollZoom: false };

// A chart also changes its width where the window does not: when another one comes beside it. Plotly's own
// "responsive" listens to the window alone (plotly.js 4.1, plot_api).
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawnWidth = target._fullLayout && target._fullLayout.width;
    if (drawnWidth && contentRect.width && Math.abs(drawnWidth - contentRect.width) > 1) {
      Plotly.Plots.resize(target);
    }
  }
});

// Only what the reader sees is drawn anew, the rest once: drawing takes the page's own thread.
const sight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = places.get(target.dataset.chart);
      if (chart) chart.near = isIntersecting;
    }
    work();
  },
  { rootMargin: "250px" },
);

function tell(type, message) {
  window.parent.postMessage({ isStreamlitMessage: true, type, ...message }, "*");
}

function fit() {
  tell("streamlit:setFrameHeight", { height: Math.ceil(board.getBoundingClientRect().height) + 4 });
}

function add(key) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const title = document.createElement("span");
  const undo = document.createElement("button");
  const plot = document.createElement("div");
  undo.type = "button";
  undo.hidden = true;
  undo.addEventListener("click", () => setZoom(null));
  caption.append(title, undo);
  figure.append(caption, plot);
  figure.dataset.chart = key;
  board.append(figure);
  const chart = { figure, title, undo, plot, told: null, shown: null, live: null, near: false, span: null };
  places.set(key, chart);
  sight.observe(figure);
  return chart;
}

function remove(key, chart) {
  sight.unobserve(chart.figure);
  widths.unobserve(chart.plot);
  Plotly.purge(chart.plot);
  chart.figure.remove();
  places.delete(key);
}

async function draw(chart) {
  const isNew = chart.shown === null;
  chart.shown = chart.told;
  const { data, layout } = JSON.parse(chart.told);
  chart.live = layout.xaxis.range;
  if (zoom) layout.xaxis.range = zoom.slice();
  chart.span = zoom;
  await Plotly.react(chart.plot, data, layout, CONFIG);
  if (isNew) {
    widths.observe(chart.plot); // tells its width at once, should that have changed while it was drawn
    chart.plot.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      if (!following && from !== undefined) setZoom([from, change["xaxis.range[1]"]]);
    });
    chart.plot.on("plotly_doubleclick", () => setZoom(null));
    // The name above an incident's band opens it. The time tells two clicks on the same name apart.
    chart.plot.on("plotly_clickannotation", ({ annotation }) => {
      if (annotation.name) {
        tell("streamlit:setComponentValue", {
          value: { incident: annotation.name, at: Date.now() },
          dataType: "json",
        });
      }
    });
  }
}

function setZoom(range) {
  zoom = range;
  for (const chart of places.values()) chart.undo.hidden = zoom === null;
  return work();
}

// Show what the zoom leaves of a chart that is drawn already.
async function follow(chart) {
  chart.span = zoom;
  following = true;
  try {
    await Plotly.relayout(chart.plot, { "xaxis.range": (zoom || chart.live).slice() });
  } finally {
    following = false;
  }
}

// Give every chart its place, at its height, before any is drawn: Plotly takes the width that it finds, the last
// of an odd number of charts has the whole row, and what is below the frame does not move.
function arrange(charts, words, theme) {
  const look = document.documentElement.style;
  if (theme && theme.textColor) look.setProperty("--text", theme.textColor);
  if (theme && theme.backgroundColor) look.setProperty("--page", theme.backgroundColor);
  const keys = new Set(charts.map((chart) => chart.key));
  for (const [key, chart] of places) {
    if (!keys.has(key)) remove(key, chart);
  }
  // A chart whose first number came late takes its place; nothing else moves.
  charts.forEach(({ key, title, figure: told, wide, height }, index) => {
    const chart = places.get(key) || add(key);
    chart.figure.classList.toggle("wide", wide);
    if (board.children[index] !== chart.figure) board.insertBefore(chart.figure, board.children[index]);
    chart.title.textContent = title;
    chart.figure.setAttribute("aria-label", title);
    chart.undo.textContent = words.undo_zoom;
    if (height) chart.plot.style.minHeight = `${height}px`;
    chart.told = told;
  });
  fit();
}

// What is to be drawn next: what the reader sees, from the top, then what was never drawn. A chart out of sight
// follows the zoom once it is seen.
function due() {
  if (document.hidden) return undefined; // a page behind others costs nothing
  const charts = [...board.children].map((figure) => places.get(figure.dataset.chart));
  const open = charts.filter((chart) => chart.told !== chart.shown || chart.span !== zoom);
  return open.find((chart) => chart.near) || open.find((chart) => chart.shown === null);
}

// A chart in sight waits for nothing but clicks and keys, the others until there is nothing else to do.
function turn() {
  return new Promise((go) => {
    const next = due();
    if (next && !next.near && window.requestIdleCallback) requestIdleCallback(go, { timeout: 1000 });
    else setTimeout(go);
  });
}

// One thing after the other: an update that comes while a chart is drawn waits, and only the newest waits.
let news = null;
let working = false;
async function work() {
  if (working) return;
  working = true;
  try {
    for (;;) {
      if (news) arrange(...news);
      news = null;
      const chart = due();
      if (!chart) break;
      await (chart.told === chart.shown ? follow : draw)(chart).catch(reportError);
      await turn();
    }
  } finally {
    working = false;
  }
  fit();
}

window.addEventListener("message", (event) => {
  if (event.source === window.parent && event.data.type === "streamlit:render") {
    news = [event.data.args.charts, event.data.args.words, event.data.theme];
    work();
  }
});
window.addEventListener("resize", fit);
document.addEventListener("visibilitychange", work);
tell("streamlit:componentReady", { apiVersion: 1 });
