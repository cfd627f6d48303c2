// Draw the charts that Streamlit sends, and update them in place, so that nothing flickers.
// If the user zooms by dragging, the zoom applies to all charts. It remains until the user undoes it.
"use strict";

const board = document.getElementById("board");
const places = new Map(); // the charts that `add` created, by key
let zoom = null;
let following = false; // true while a chart takes over the zoom of another chart

const CONFIG = { displayModeBar: false, doubleClick: false, scrollZoom: false };

// If another chart appears beside a chart, the width of the chart changes, but not the window's. The Plotly option
// "responsive" observes only the window (plotly.js 4.1, plot_api).
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawnWidth = target._fullLayout && target._fullLayout.width;
    if (drawnWidth && contentRect.width && Math.abs(drawnWidth - contentRect.width) > 1) {
      Plotly.Plots.resize(target);
    }
  }
});

// Drawing blocks the page. An invisible chart is therefore drawn only once, and updated when it becomes visible.
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

function send(type, message) {
  window.parent.postMessage({ isStreamlitMessage: true, type, ...message }, "*");
}

function fit() {
  send("streamlit:setFrameHeight", { height: Math.ceil(board.getBoundingClientRect().height) + 4 });
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
  const chart = { figure, title, undo, plot };
  chart.received = chart.drawn = null; // the newest data as JSON, and the data that is drawn
  chart.span = null; // the zoom with which the chart is drawn; null means the range `live`
  chart.near = false; // true if the chart is visible or almost visible
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
  const isNew = chart.drawn === null;
  chart.drawn = chart.received;
  const { data, layout } = JSON.parse(chart.received);
  chart.live = layout.xaxis.range;
  if (zoom) layout.xaxis.range = zoom.slice();
  chart.span = zoom;
  await Plotly.react(chart.plot, data, layout, CONFIG);
  if (isNew) {
    widths.observe(chart.plot); // also reports changes of the width during the drawing
    chart.plot.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      if (!following && from !== undefined) setZoom([from, change["xaxis.range[1]"]]);
    });
    chart.plot.on("plotly_doubleclick", () => setZoom(null));
    // A click on the name of an incident opens the incident. The time distinguishes two clicks on the same name.
    chart.plot.on("plotly_clickannotation", ({ annotation }) => {
      if (annotation.name) {
        send("streamlit:setComponentValue", {
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

// Apply the zoom to a chart that has been drawn.
async function follow(chart) {
  chart.span = zoom;
  following = true;
  try {
    await Plotly.relayout(chart.plot, { "xaxis.range": (zoom || chart.live).slice() });
  } finally {
    following = false;
  }
}

// Place all charts, with their heights, before any is drawn. Plotly then finds the final widths (the last of
// an odd number of charts takes a full row), and the page below the frame does not move.
function arrange(charts, words, theme) {
  const look = document.documentElement.style;
  if (theme && theme.textColor) look.setProperty("--text", theme.textColor);
  if (theme && theme.backgroundColor) look.setProperty("--page", theme.backgroundColor);
  const keys = new Set(charts.map((chart) => chart.key));
  for (const [key, chart] of places) {
    if (!keys.has(key)) remove(key, chart);
  }
  charts.forEach(({ key, title, figure, wide, height }, index) => {
    const chart = places.get(key) || add(key);
    chart.figure.classList.toggle("wide", wide);
    if (board.children[index] !== chart.figure) board.insertBefore(chart.figure, board.children[index]);
    chart.title.textContent = title;
    chart.figure.setAttribute("aria-label", title);
    chart.undo.textContent = words.undo_zoom;
    if (height) chart.plot.style.minHeight = `${height}px`;
    chart.received = figure;
  });
  fit();
}

// Return the next chart to draw: the first visible one or, if none, the first that was never drawn. A chart that
// is not visible takes over the zoom when it becomes visible.
function due() {
  if (document.hidden) return undefined; // do no work for a hidden page
  const charts = [...board.children].map((figure) => places.get(figure.dataset.chart));
  const open = charts.filter((chart) => chart.received !== chart.drawn || chart.span !== zoom);
  return open.find((chart) => chart.near) || open.find((chart) => chart.drawn === null);
}

// Let the browser handle events before the next chart. A chart that is not visible waits until the page is idle.
function turn() {
  return new Promise((go) => {
    const next = due();
    if (next && !next.near && window.requestIdleCallback) requestIdleCallback(go, { timeout: 1000 });
    else setTimeout(go);
  });
}

// Draw one chart at a time. An update that arrives during the drawing waits. A later update replaces it.
let update = null;
let working = false;
async function work() {
  if (working) return;
  working = true;
  try {
    for (;;) {
      if (update) arrange(...update);
      update = null;
      const chart = due();
      if (!chart) break;
      await (chart.received === chart.drawn ? follow : draw)(chart).catch(reportError);
      await turn();
    }
  } finally {
    working = false;
  }
  fit();
}

window.addEventListener("message", (event) => {
  if (event.source === window.parent && event.data.type === "streamlit:render") {
    update = [event.data.args.charts, event.data.args.words, event.data.theme];
    work();
  }
});
window.addEventListener("resize", fit);
document.addEventListener("visibilitychange", work);
send("streamlit:componentReady", { apiVersion: 1 });
