"use strict";
// Tables: a click on a header sorts, words in the field above search. Values are read, never written as markup.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  table.tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const head = button.closest("th");
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const missing = (value) => value === "" || Number.isNaN(value);
    const rows = Array.from(body.rows).sort((a, b) => {
      const [x, y] = [valueOf(a, head.cellIndex), valueOf(b, head.cellIndex)];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    });
    body.append(...rows);
  });
  const search = table.closest("section, details, main").querySelector(`.search[data-table="${table.id}"]`);
  if (!search) continue;
  const [field, count] = [search.querySelector("input"), search.querySelector("output")];
  search.hidden = false;
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${body.rows.length} rows`;
  });
}
// A link to a run opens it.
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", () => {
    const target = document.getElementById(link.getAttribute("href").slice(1));
    if (target) target.open = true;
  });
}
