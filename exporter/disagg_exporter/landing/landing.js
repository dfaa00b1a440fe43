// Renews the page from the server's own HTML, part by part, so that focus, selection and scroll
// positions stay and a screen reader is told only what changed.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const clock = document.getElementById("clock");
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  let paused = false;

  function renew(fresh) {
    // The title counts what is wrong: a reader who does not look at the page hears when it changes.
    if (document.title !== fresh.title) live.textContent = document.title = fresh.title;
    else if (live.classList.contains("lost")) live.textContent = "";
    for (const part of document.querySelectorAll("main > section, #links")) {
      const other = fresh.getElementById(part.id);
      if (!other || other.innerHTML === part.innerHTML) continue;
      const held = document.activeElement;
      const id = held && part.contains(held) ? held.id : "";
      const scrolled = [...part.querySelectorAll(".scroll")].map((box) => [box.id, box.scrollLeft]);
      part.replaceChildren(...document.importNode(other, true).childNodes);
      for (const [box, left] of scrolled) {
        const found = document.getElementById(box);
        if (found) found.scrollLeft = left;
      }
      if (id) document.getElementById(id)?.focus({ preventScroll: true });
    }
    const main = fresh.querySelector("main");
    if (!document.querySelector("main > section") && main.querySelector("section")) {
      document.querySelector("main").replaceWith(document.importNode(main, true));
    }
    clock.textContent = fresh.getElementById("clock").textContent;
    live.classList.remove("lost");
  }

  async function round() {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(5000) });
        if (!answer.ok) throw new Error(`the node answers ${answer.status}`);
        renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
      } catch (error) {
        if (!live.classList.contains("lost")) {
          live.textContent = "Not renewed: the node does not answer.";
          live.classList.add("lost");
        }
      }
    }
    setTimeout(round, EVERY_MS);
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
  });
  setTimeout(round, EVERY_MS);
})();
