//! The one place that reads an error's text: several providers have no code for "the request is too large", and none a member
//! for how much would not be. Wordings are those of the field; one that is not known is no error, only nothing learned.

/// What says that the request does not fit. Anthropic ("prompt is too long: 208310 tokens > 200000 maximum", type
/// `invalid_request_error`), Gemini ("The input token count (…) exceeds the maximum number of tokens allowed",
/// `INVALID_ARGUMENT`), Bedrock ("Input is too long for requested model", `ValidationException`) and OpenAI-compatible
/// servers ("maximum context length", "exceeds the available context size") give it no code.
const OVERFLOW: [&str; 10] = [
    "prompt is too long",
    "input is too long",
    "input token count",
    "maximum context length",
    "maximum prompt length",
    "model token limit",
    "exceeds the available context size",
    "context window",
    "exceed context limit",
    "context length of only",
];

/// What stands right before the limit: OpenAI and vLLM; xAI; Gemini, twice; llama.cpp; Moonshot; LM Studio; others.
const BEFORE_LIMIT: [&str; 9] = [
    "maximum context length is",
    "maximum context length of",
    "maximum prompt length is",
    "maximum number of tokens allowed",
    "model only supports up to",
    "available context size",
    "model token limit:",
    "context length of only",
    "context window of",
];
/// What stands right behind it: Mistral.
const BEHIND_LIMIT: &str = "maximum context length";
/// Anthropic writes it as a comparison.
const COMPARED: [&str; 2] = ["prompt is too long", "exceed context limit"];
/// Characters between such words and their number.
const MAX_GAP: usize = 3;
/// Digits of a number that can be a window.
const MAX_DIGITS: usize = 12;
/// A number below is no window of a conversation, but something else that the words are followed by.
const MIN_LIMIT: u64 = 1_000;

/// Whether it can be a window.
pub fn is_limit(tokens: u64) -> bool {
    tokens >= MIN_LIMIT
}

/// Whether the text says that the request is too large.
pub(super) fn is_overflow_text(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    OVERFLOW.iter().any(|phrase| text.contains(phrase))
}

/// The tokens of the window, where the text says so.
pub(super) fn named_limit(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let behind = |words: &str| number_at_start(text.split_once(words)?.1);
    let compared = || {
        let is = COMPARED.iter().any(|phrase| text.contains(phrase));
        is.then(|| number_at_start(text.rsplit_once('>')?.1))?
    };
    let before = || number_at_end(text.split_once(BEHIND_LIMIT)?.0);
    let limit = BEFORE_LIMIT.into_iter().find_map(behind).or_else(compared).or_else(before)?;
    is_limit(limit).then_some(limit)
}

/// `" (1,048,576)."` is 1048576.
fn number_at_start(text: &str) -> Option<u64> {
    let at = text.char_indices().take(MAX_GAP + 1).find(|(_, c)| c.is_ascii_digit())?.0;
    let digits = text[at..].chars().take_while(|c| c.is_ascii_digit() || matches!(c, ',' | '_'));
    number(&digits.filter(char::is_ascii_digit).collect::<String>())
}

fn number_at_end(text: &str) -> Option<u64> {
    let text = text.trim_end();
    let start = text.rfind(|c: char| !c.is_ascii_digit() && c != ',').map_or(0, |at| at + 1);
    // A character of several bytes ends somewhere behind its first one.
    number(&text.get(start..)?.replace(',', ""))
}

fn number(digits: &str) -> Option<u64> {
    (digits.len() <= MAX_DIGITS).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_wordings_name_the_limit_and_not_the_request() {
        for (text, limit) in [
            // OpenAI, Azure, vLLM.
            (
                "This model's maximum context length is 128000 tokens. However, your messages resulted in 130172 tokens.",
                Some(128_000),
            ),
            (
                "This model's maximum context length is 4097 tokens. However, you requested 4226 tokens (3202 in the messages, 1024 in the completion).",
                Some(4_097),
            ),
            (
                "Your input exceeds the context window of this model. Please adjust your input and try again.",
                None,
            ),
            // Anthropic, and the same model on Bedrock.
            ("prompt is too long: 208310 tokens > 200000 maximum", Some(200_000)),
            (
                "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
                Some(200_000),
            ),
            // Gemini.
            (
                "The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).",
                Some(1_048_576),
            ),
            ("The input token count is 1500000 but model only supports up to 1,048,576.", Some(1_048_576)),
            // Bedrock.
            ("Input is too long for requested model.", None),
            ("The model returned the following errors: Input is too long for requested model", None),
            // Servers that speak OpenAI's dialect.
            ("the request exceeds the available context size (4096 tokens), try increasing it", Some(4_096)),
            (
                "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
                Some(131_072),
            ),
            (
                "Prompt contains 40960 tokens, too large for model with 32768 maximum context length",
                Some(32_768),
            ),
            ("Invalid request: Your request exceeded model token limit: 8192", Some(8_192)),
            (
                "However, the model is loaded with context length of only 4096 tokens, which is not enough.",
                Some(4_096),
            ),
            (
                "This endpoint's maximum context length is 163840 tokens. However, you requested about 200119 tokens",
                Some(163_840),
            ),
        ] {
            assert!(is_overflow_text(text), "{text}");
            assert_eq!(named_limit(text), limit, "{text}");
        }
    }

    #[test]
    fn i9_no_wording_panics_and_no_nonsense_is_a_limit() {
        for text in [
            "",
            "maximum context length is",
            "maximum context length is 12 tokens",
            "maximum context length is 99999999999999999999999",
            "of 4096ü maximum context length",
            "prompt is too long: 9 >",
            "prompt is too long: 20000 > 8",
            "model only supports up to the 5000 that you know",
            "rate limit of 40000 tokens",
        ] {
            assert_eq!(named_limit(text), None, "{text}");
        }
    }
}
