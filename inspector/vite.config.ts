import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

// Where a running `dormouse serve` is, for `npm run dev`.
const api = process.env.DORMOUSE_URL ?? "http://127.0.0.1:8787";

// One script, one style, names without hashes: the built files are committed and compiled into the binary.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  resolve: { alias: { "@ag-ui/proto": fileURLToPath(new URL("src/no-proto.ts", import.meta.url)) } },
  build: {
    target: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    chunkSizeWarningLimit: 300,
    license: { fileName: "LICENSES.md" },
    rollupOptions: {
      output: {
        entryFileNames: "inspector/app.js",
        assetFileNames: "inspector/app.[ext]",
      },
    },
  },
  server: { proxy: { "/threads": api, "/agui": api } },
});
