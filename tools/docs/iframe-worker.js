// Browsers refuse workers on pages from file://. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.scope = this.frame.contentWindow;
      this.scope.document.write("<body></body>");
      this.scope.document.close();
      this.scope.postMessage = data => setTimeout(() => this.onmessage?.({data}));
      this.loaded = new Promise(resolve => {
        const script = this.scope.document.createElement("script");
        script.src = new URL(url, location);
        script.onload = resolve;
        script.onerror = event => this.onerror?.(event);
        this.scope.document.body.append(script);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.scope.onmessage({data}));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
