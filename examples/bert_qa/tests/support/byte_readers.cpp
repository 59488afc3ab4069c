#include "bert_qa/tests/support/byte_readers.h"

#include <fmt/format.h>

#include <algorithm>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/tokenizer_json.h"
#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/tests/support/text_readers.h"
#include "bert_qa/text/unicode_text.h"

namespace bert_qa {
namespace {

using fsdp::Verdict;

Verdict read_config(std::string_view bytes) {
  return fsdp::verdict_of<fsdp::InvalidArgument>([&] {
    const bert::Config config = parse_model_config(bytes, "f");
    fsdp::demand(config.hidden_size % config.num_attention_heads == 0, "heads that do not fit");
    fsdp::demand(config.pad_token_id < config.vocab_size, "padding that is no token");
    fsdp::demand(parse_model_config(format_model_config(config), "f") == config,
                 "a configuration that changes when it is written");
  });
}

void check_answers(const QaDataset& dataset) {
  for (const QaQuestion& question : dataset.questions) {
    fsdp::demand(question.context >= 0 && question.context < std::ssize(dataset.contexts),
                 "a question without its context");
    for (const QaAnswer& answer : question.answers) {
      const int64_t end = answer.start + count_code_points(answer.text);
      fsdp::demand(code_point_slice(dataset.context_of(question), answer.start, end) == answer.text,
                   "an answer that is not at its offset");
    }
  }
}

Verdict read_squad(std::string_view bytes) {
  const auto read = [&](const SquadOptions& options) {
    return fsdp::verdict_of<fsdp::InvalidArgument>([&] {
      const QaDataset dataset = parse_squad(bytes, "f", options);
      if (options.check_answers) check_answers(dataset);
      check_windows(dataset);
    });
  };
  const Verdict lenient = read({.check_answers = false, .skip_bad_rows = true});
  const Verdict strict = read({});
  fsdp::demand(strict == Verdict::kRefused || lenient == Verdict::kAccepted,
               "a file that only the strict reader accepts");
  return strict;
}

Verdict read_vocabulary(std::string_view bytes) {
  return fsdp::verdict_of([&] { check_vocabulary(WordPieceVocab::parse(bytes, "f")); });
}

Verdict read_tokenizer_json(std::string_view bytes) {
  return fsdp::verdict_of<fsdp::InvalidArgument>(
      [&] { check_vocabulary(parse_tokenizer_json(bytes, "f").vocab); });
}

Verdict read_text_with_tokenizer(std::string_view bytes) {
  check_tokens(bytes);
  return Verdict::kAccepted;
}

// The readers with their memory factors. A factor is large because a question, an answer or a token
// of a few bytes becomes an object with several strings.
constexpr fsdp::ByteReader kReaders[] = {
    {"config", read_config, 1},
    {"squad", read_squad, 64},
    {"vocabulary", read_vocabulary, 256},
    {"tokenizer_json", read_tokenizer_json, 256},
    {"tokenizer", read_text_with_tokenizer, 64},
};

}  // namespace

std::span<const fsdp::ByteReader> byte_readers() { return kReaders; }

const fsdp::ByteReader& byte_reader(std::string_view name) {
  const auto at = std::ranges::find(kReaders, name, &fsdp::ByteReader::name);
  fsdp::demand(at != std::end(kReaders), fmt::format("no reader is called {}", name));
  return *at;
}

}  // namespace bert_qa
