#include "bert_qa/nq/nq_vocab.h"

#include <fmt/format.h>

namespace bert_qa {
namespace {

constexpr int kMaxContext = 499;  // a candidate with a higher index has [UNK]

}  // namespace

std::vector<std::string> nq_tokens() {
  std::vector<std::string> tokens{"[Q]", "[NoLongAnswer]", "[ContextId=-1]"};
  for (const char* kind : {"Paragraph", "Table", "List", "Other"}) {
    for (int i = 1; i <= kMaxNqPosition; ++i) tokens.push_back(fmt::format("[{}={}]", kind, i));
  }
  for (int i = 0; i <= kMaxContext; ++i) tokens.push_back(fmt::format("[ContextId={}]", i));
  return tokens;
}

WordPieceVocab with_nq_tokens(const WordPieceVocab& vocab, std::vector<std::string>& notes) {
  const std::vector<std::string> wanted = nq_tokens();
  if (vocab.find(wanted.front())) return vocab;
  std::vector<std::string> tokens;
  size_t added = 0;
  for (int64_t id = 0; id < vocab.size(); ++id) {
    const std::string& token = vocab.token(id);
    const bool is_unused = token.starts_with("[unused") && token.ends_with("]");
    tokens.push_back(is_unused && added < wanted.size() ? wanted[added++] : token);
  }
  notes.push_back(fmt::format(
      "{} of {} tokens of Natural Questions replace [unused] tokens of the vocabulary{}", added,
      wanted.size(), added < wanted.size() ? "; the others are [UNK]" : ""));
  return WordPieceVocab::of_tokens(std::move(tokens), "the vocabulary",
                                   {.pad = vocab.token(vocab.pad_id()),
                                    .unk = vocab.token(vocab.unk_id()),
                                    .cls = vocab.token(vocab.cls_id()),
                                    .sep = vocab.token(vocab.sep_id()),
                                    .mask = vocab.token(vocab.mask_id())});
}

}  // namespace bert_qa
