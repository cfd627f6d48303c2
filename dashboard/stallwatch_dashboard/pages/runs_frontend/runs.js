// The table of runs. It searches, filters, and sorts in the browser, and stores these choices in the address.
// Data is set only as text. The server sends new rows every two seconds. Each row belongs to a run and is
// updated in place, so the scroll position, the selection, and the focus do not change.

const SVG = "http://www.w3.org/2000/svg";
const MOST_SEARCH = 200;
const ROWS = 60; // number of rows that are drawn first, and that are added each time the user scrolls to the end
const NAME = 21; // number of characters that fit the column of names
const tables = new WeakMap(); // tables by the parent element, which Streamlit creates

export default function ({ data, parentElement }) {
  let table = tables.get(parentElement);
  if (!table || !table.root.isConnected) {
    table = new Table(parentElement.querySelector(".runs"));
    tables.set(parentElement, table);
  }
  table.show(data);
}

class Table {
  constructor(root) {
    const find = (selector) => root.querySelector(selector);
    Object.assign(this, { root, search: find("input"), order: find("select"), states: find(".runs-states") });
    Object.assign(this, { summary: find(".runs-summary"), status: find(".runs-status"), none: find(".runs-none") });
    Object.assign(this, { scroll: find(".runs-scroll"), widths: find("colgroup"), hint: find(".runs-hint") });
    Object.assign(this, { head: find("thead tr"), body: find("tbody") });
    this.rows = new Map(); // the results of `add`, by run
    this.most = ROWS;
    this.language = null;
    this.search.maxLength = MOST_SEARCH;
    this.search.addEventListener("input", () => this.choose({ q: this.search.value }, false));
    // The field's clear button causes a "search" event, but no "change" event until the field loses the focus.
    for (const settled of ["change", "search"]) this.search.addEventListener(settled, () => this.toAddress());
    this.order.addEventListener("change", () => this.choose({ sort: this.order.value }));
    this.body.addEventListener("click", (event) => this.click(event));
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.scroll.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.scroll;
      if (this.most >= this.fits || scrollTop + 2 * clientHeight < scrollHeight) return;
      this.most += ROWS;
      this.draw();
    });
    const { pathname } = location;
    const back = () => {
      if (!root.isConnected) window.removeEventListener("popstate", back); // another page is open
      else if (this.data && location.pathname === pathname) this.fromAddress();
    };
    window.addEventListener("popstate", back);
  }

  show(data) {
    this.data = data;
    const labels = JSON.stringify([data.language, data.columns]);
    if (this.labels !== labels) this.label();
    this.labels = labels;
    if (this.chosen) this.draw();
    else this.fromAddress();
  }

  // Create the columns with their headers, and set all constant texts, in the user's language.
  label() {
    const { words, columns, states } = this.data;
    this.language = this.data.language;
    this.search.placeholder = words.search;
    this.search.setAttribute("aria-label", words.search);
    this.order.setAttribute("aria-label", words.order);
    this.states.setAttribute("aria-label", words.state);
    this.scroll.setAttribute("aria-label", words.runs);
    this.none.textContent = words.none;
    this.hint.textContent = words.hint;
    this.states.replaceChildren(
      ...states.map(({ name, icon, word }) => {
        const button = made("button", `${icon} ${word}`);
        button.type = "button";
        button.addEventListener("click", () => {
          const on = new Set(this.chosen.state);
          if (!on.delete(name)) on.add(name);
          this.choose({ state: states.map((state) => state.name).filter((known) => on.has(known)) });
        });
        return button;
      }),
    );
    this.widths.replaceChildren(
      ...columns.map(({ width }) => {
        const column = made("col");
        column.style.width = width;
        return column;
      }),
    );
    const table = this.body.parentElement;
    table.style.minWidth = `calc(${columns.map(({ width }) => width).join(" + ")})`;
    table.style.setProperty("--runs-first", columns[0].width);
    if (this.chosen && !this.column(this.chosen.sort)) this.chosen.sort = columns[0].order; // column is omitted
    this.head.replaceChildren(
      ...columns.map((column) => {
        const cell = made("th", column.order ? "" : column.title);
        cell.scope = "col";
        cell.classList.toggle("runs-number", column.number);
        if (!column.order) return cell;
        const button = made("button", column.title);
        button.type = "button";
        if (column.help) button.title = column.help;
        button.addEventListener("click", () => {
          const { order } = column;
          this.choose({ sort: this.chosen.sort === order ? `-${order}` : order });
        });
        cell.append(button);
        return cell;
      }),
    );
    this.rows.clear();
    this.body.replaceChildren();
  }

  // Read the choices from the address. Ignore invalid values, so that an invalid link does not break the page.
  fromAddress() {
    const query = new URLSearchParams(location.search);
    const named = (query.get("state") || "").split(",");
    const sort = query.get("sort") || "";
    this.chosen = {
      state: this.data.states.map(({ name }) => name).filter((name) => named.includes(name)),
      q: (query.get("q") || "").slice(0, MOST_SEARCH),
      sort: this.column(sort) ? sort : this.data.columns[0].order,
    };
    this.search.value = this.chosen.q;
    this.draw();
  }

  choose(changed, kept = true) {
    Object.assign(this.chosen, changed);
    if (kept) this.toAddress();
    this.draw();
    setText(this.status, this.summary.textContent);
  }

  // Store the choices in the address. Each change adds a history entry, but a search adds only its final words.
  toAddress() {
    const params = new URLSearchParams(location.search);
    const { state, q, sort } = this.chosen;
    const values = { state: state.join(","), q: q.trim(), sort: sort === this.data.columns[0].order ? "" : sort };
    for (const [name, text] of Object.entries(values)) {
      if (text) params.set(name, text);
      else params.delete(name);
    }
    const query = params.toString();
    if (query !== new URLSearchParams(location.search).toString())
      history.pushState({}, "", location.pathname + (query && `?${query}`) + location.hash);
  }

  column(sort) {
    return this.data.columns.find(({ order }) => order && order === sort.replace(/^-/, ""));
  }

  // Return the rows that match the search and the chosen states, the most urgent first, as the server sends them.
  fitting() {
    const { state, q } = this.chosen;
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    return this.data.rows.filter((row) => {
      if (state.length && !state.includes(row.state)) return false;
      const found = row.found.toLowerCase();
      return words.every((word) => found.includes(word));
    });
  }

  sorted(rows) {
    const column = this.column(this.chosen.sort);
    const place = this.data.columns.indexOf(column);
    const back = this.chosen.sort.startsWith("-");
    if (place === 0) return back ? rows.reverse() : rows;
    const content = (text) => (text && text !== this.data.words.nothing ? text : null);
    const value = (row) => (column.number ? row.values[place] : content(row.cells[place]));
    const words = new Intl.Collator(this.language, { numeric: true });
    const sign = column.rising === back ? -1 : 1;
    return rows.sort((first, second) => {
      const [a, b] = [value(first), value(second)];
      if (a === null || b === null) return (a === null) - (b === null); // empty cells are last
      return sign * (column.number ? a - b : words.compare(a, b));
    });
  }

  draw() {
    const { data, chosen } = this;
    this.states.childNodes.forEach((button, index) => {
      button.setAttribute("aria-pressed", chosen.state.includes(data.states[index].name));
    });
    this.drawOrder();
    const rows = this.sorted(this.fitting());
    this.fits = rows.length;
    this.count(rows.length);
    this.body.parentElement.setAttribute("aria-rowcount", rows.length + 1);
    this.none.hidden = rows.length > 0;
    this.scroll.hidden = this.hint.hidden = !rows.length;
    this.drawRows(rows.slice(0, this.most));
  }

  drawOrder() {
    const { data, chosen } = this;
    const column = this.column(chosen.sort);
    const named = data.orders.some(([name]) => name === chosen.sort);
    const up = column.rising !== chosen.sort.startsWith("-");
    const orders = named ? data.orders : [...data.orders, [chosen.sort, `${column.title} ${up ? "↑" : "↓"}`]];
    const json = JSON.stringify(orders);
    if (this.orders !== json) {
      this.orders = json;
      this.order.replaceChildren(
        ...orders.map(([name, title]) => {
          const option = made("option", title);
          option.value = name;
          return option;
        }),
      );
    }
    this.order.value = chosen.sort;
    this.head.childNodes.forEach((cell, index) => {
      if (data.columns[index] !== column) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", up ? "ascending" : "descending");
    });
  }

  // Show the number of runs in each state, and how many runs are shown.
  count(shown) {
    const { states, rows, words } = this.data;
    const parts = states
      .map(({ name, icon, word }) => [icon, rows.filter((row) => row.state === name).length, word])
      .filter(([, count]) => count)
      .map((counted) => counted.join(" "));
    if (shown !== rows.length) parts.unshift(words.shown.replace("{0}", shown).replace("{1}", rows.length));
    setText(this.summary, parts.join(" · "));
  }

  drawRows(rows) {
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const { scrollTop } = this.scroll;
    const keep = new Set(rows.map(({ key }) => key));
    for (const [key, { line }] of this.rows) {
      if (keep.has(key)) continue;
      line.remove();
      this.rows.delete(key);
    }
    rows.forEach((row, index) => {
      let known = this.rows.get(row.key);
      if (!known) this.rows.set(row.key, (known = this.add(row.key)));
      this.fill(known, row);
      const there = this.body.children[index];
      if (there !== known.line) this.body.insertBefore(known.line, there || null);
    });
    if (focused && focused.isConnected && document.activeElement !== focused)
      focused.focus({ preventScroll: true }); // the element lost the focus when its row was moved
    this.scroll.scrollTop = scrollTop;
  }

  add(key) {
    const line = made("tr");
    const cells = this.data.columns.map(({ number }, place) => {
      const cell = made(place === 1 ? "th" : "td");
      cell.classList.toggle("runs-number", number);
      line.append(cell);
      return cell;
    });
    cells[1].scope = "row";
    const link = made("a");
    link.href = `run?${new URLSearchParams({ run: key })}`;
    cells[1].append(link);
    cells[1] = link;
    return { line, cells, shown: [] };
  }

  fill({ cells, shown }, row) {
    cells.forEach((cell, place) => {
      const text = row.cells[place];
      if (shown[place] === text) return;
      shown[place] = text;
      if (this.data.columns[place].course) drawCourse(cell, text);
      else cell.textContent = place === 1 ? shortened(text) : text;
      if (this.data.columns[place].long) cell.title = text;
    });
  }

  // A click on a row opens its run. The event makes Streamlit open the page, as the browser's back button does.
  click(event) {
    const row = event.target.closest("tr");
    const link = row && row.querySelector("a");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (String(getSelection()) && !event.target.closest("a")) return; // the user selected text
    this.toAddress();
    history.pushState({}, "", link.href);
    dispatchEvent(new PopStateEvent("popstate", { state: {} }));
  }

  key(event) {
    const to = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const row = to && event.target.closest("tr")[to];
    if (!row) return;
    event.preventDefault();
    row.querySelector("a").focus();
  }
}

// Shorten a name in the middle, because names of runs often differ only in their last characters.
function shortened(name) {
  const letters = [...name];
  return letters.length > NAME ? `${letters.slice(0, NAME - 11).join("")}…${letters.slice(-10).join("")}` : name;
}

// Draw a curve. `text` contains the heights of its points in percent.
function drawCourse(cell, text) {
  const heights = text.split(" ");
  if (heights.length < 2) return cell.replaceChildren();
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", heights.map((height, index) => `${index},${100 - height}`).join(" "));
  line.setAttribute("vector-effect", "non-scaling-stroke");
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 -4 ${heights.length - 1} 108`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  drawing.append(line);
  return cell.replaceChildren(drawing);
}

// Assistive technology can announce each assignment, so assign a text only if it has changed.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function made(tag, text = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}
