import { render } from "preact";
import { App } from "./view/App";
import { apply, theme } from "./theme";
import "./style.css";

apply(theme());
const place = document.getElementById("app");
if (place) render(<App />, place);
