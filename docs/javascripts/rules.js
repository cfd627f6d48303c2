// Find the rules whose patterns match pasted log lines. The browser sends no data to a server.
// If a rule matches the text that a user pastes into the search field, the title of the rule replaces the text.
// Otherwise, plain words replace the text, because lunr interprets colons, asterisks, and signs as operators.
"use strict"

const PREFIX = /^\s*(?:\[?\w*\d+\]?:\s*|\[[^\]]*\]:?\s*|[\d\-T:.,+Z\/]{8,}\s+|(?:INFO|WARN(?:ING)?|ERROR|CRITICAL)\b[\s:|-]*|\(\w+ pid=[^)]*\)\s*)/

function compiled(pattern) {
  const ignoreCase = pattern.startsWith("(?i)")
  const source = pattern.replace(/^\(\?i\)/, "").replace(/\(\?P<\w+>/g, "(?:")
  try {
    return new RegExp(source, ignoreCase ? "i" : "")
  } catch {
    return null // scoped flags, which some browsers do not support
  }
}

function forms(line) {
  const found = [line.slice(0, 4000)]
  for (let left = found[0], times = 0; times < 4; times++) {
    const rest = left.replace(PREFIX, "")
    if (rest === left) break
    found.push((left = rest))
  }
  return found
}

function matching(rules, text) {
  const lines = text.replace(/\x1b\[[0-9;]*[A-Za-z]/g, "").split(/\r?\n|\r/).filter(line => line.trim()).slice(0, 2000)
  const known = lines.map(forms)
  return rules.filter(rule => {
    rule.found ??= rule.patterns.map(compiled).filter(Boolean)
    rule.not ??= rule.unless.map(compiled).filter(Boolean)
    return known.some(ways => ways.some(line => rule.found.some(pattern => pattern.test(line)))
      && !ways.some(line => rule.not.some(pattern => pattern.test(line))))
  })
}

async function prepare(field) {
  const list = document.getElementById("rules-found")
  const chinese = document.documentElement.lang === "zh" || location.pathname.includes("/zh/")
  const rules = await (await fetch(field.dataset.rules)).json()
  const show = () => {
    const found = field.value.trim() ? matching(rules, field.value) : []
    list.replaceChildren(...found.map(rule => {
      const link = document.createElement("a")
      link.href = `${rule.id}/`
      link.textContent = chinese ? rule.title_zh : rule.title
      const row = document.createElement("li")
      row.append(link)
      return row
    }))
    document.getElementById("rules-none").hidden = !field.value.trim() || found.length > 0
  }
  field.addEventListener("input", show)
  field.dataset.ready = "true"
  show()
}

const field = document.getElementById("rules-find")
if (field) prepare(field)

document.addEventListener("paste", async event => {
  const search = event.target
  if (!(search instanceof HTMLInputElement) || search.dataset.mdComponent !== "search-query") return
  event.preventDefault()
  const pasted = event.clipboardData.getData("text")
  const base = JSON.parse(document.getElementById("__config").textContent).base
  const rules = await (await fetch(`${base}/catalogue/patterns.json`)).json()
  const words = matching(rules, pasted)[0]?.title ?? pasted
  const plain = words.replace(/[:*~^+\-"'`()\[\]{}<>=|\\/]+|\.(?=\s|$)/g, " ").replace(/\s+/g, " ").trim().slice(0, 300)
  search.setRangeText(plain, search.selectionStart, search.selectionEnd, "end")
  search.dispatchEvent(new Event("input", { bubbles: true }))
  search.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }))
}, true)
