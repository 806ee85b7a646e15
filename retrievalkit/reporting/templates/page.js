"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    if (!heads[column].classList.contains("number")) return text;
    const number = parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? -Infinity : number;
  };
  const order = (column) => {
    const now = heads[column].getAttribute("aria-sort");
    const descending = now ? now === "ascending" : heads[column].classList.contains("number");
    const compare = (one, other) =>
      typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort((one, other) => (compare(one[0], other[0]) || 0) * (descending ? -1 : 1));
    body.append(...rows.map((pair) => pair[1]));
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  };
  heads.forEach((head, column) => {
    if (body.rows.length < 2) return;
    head.classList.add("sortable");
    head.tabIndex = 0;
    head.title = "Order the rows by this column";
    head.addEventListener("click", () => order(column));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        order(column);
      }
    });
  });
  if ("find" in table.dataset) {
    const field = document.createElement("input");
    field.type = "search";
    field.className = "find";
    field.placeholder = "Find rows";
    field.setAttribute("aria-label", "Show only the rows that hold this");
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
      }
    });
    table.parentElement.before(field);
  }
}
