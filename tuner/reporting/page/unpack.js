// Starts the plotting library, which is in the page compressed, and then the page's own script.
(async ({ nonce }) => {
  const textOf = (name) => document.querySelector(`script.${name}`).textContent;
  const start = (text) => document.body.append(Object.assign(document.createElement("script"), { nonce, text }));
  const bytes = Uint8Array.from(atob(textOf("packed")), (sign) => sign.charCodeAt(0));
  const library = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  start(await new Response(library).text());
  start(textOf("then"));
})(document.currentScript);
