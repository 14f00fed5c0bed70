// Begins the page that stands alone, after the modules that draw.

const { title, rows, ...model } = JSON.parse(document.getElementById("data").textContent);
document.getElementById("title").textContent = document.title = title;
showGraphs(document.getElementById("place"), model, {}, rows);
