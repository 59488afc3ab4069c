#include "bert_qa/text/wordpiece_trie.h"

#include <algorithm>

namespace bert_qa {
namespace {

constexpr int32_t kRootParent = INT32_MAX;  // neither free nor a child of any node
constexpr std::string_view kContinuationPrefix = "##";

bool is_ascii_capital(char c) { return c >= 'A' && c <= 'Z'; }

}  // namespace

WordPieceTrie::WordPieceTrie(const WordPieceVocab& vocab, bool fold_ascii_case) {
  assign_codes(vocab, fold_ascii_case);
  nodes_.resize(code_count_ + 2);
  for (const int32_t root : {kWordRoot, kContinuationRoot}) {
    nodes_[root].parent = kRootParent;
    build(root, sorted_keys(vocab, fold_ascii_case, root == kContinuationRoot));
  }
}

// Assigns dense codes to the bytes of tokens, so that the children of a node are close to each
// other in the array.
void WordPieceTrie::assign_codes(const WordPieceVocab& vocab, bool fold_ascii_case) {
  for (int64_t id = 0; id < vocab.size(); ++id) {
    for (const char c : vocab.token(id)) {
      auto& code = codes_[static_cast<uint8_t>(c)];
      if (code == 0) code = static_cast<uint8_t>(code_count_++);
    }
  }
  if (!fold_ascii_case) return;
  for (int c = 'A'; c <= 'Z'; ++c) codes_[c] = codes_[c - 'A' + 'a'];
}

std::vector<WordPieceTrie::Key> WordPieceTrie::sorted_keys(const WordPieceVocab& vocab,
                                                           bool fold_ascii_case,
                                                           bool continuation) const {
  std::vector<Key> keys;
  keys.reserve(vocab.size());
  for (int64_t id = 0; id < vocab.size(); ++id) {
    std::string_view token = vocab.token(id);
    // Folded, its codes would equal those of the token in small letters.
    if (fold_ascii_case && std::any_of(token.begin(), token.end(), is_ascii_capital)) continue;
    if (token.starts_with(kContinuationPrefix) != continuation) continue;
    if (continuation) token.remove_prefix(kContinuationPrefix.size());
    if (token.empty()) continue;
    Key key{{}, static_cast<int32_t>(id)};
    for (const char c : token) {
      key.codes.push_back(codes_[static_cast<uint8_t>(c)]);
    }
    keys.push_back(std::move(key));
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.codes < b.codes; });
  return keys;
}

// Builds the trie below `root` without recursion. A node stands for a range of keys with a common
// prefix.
void WordPieceTrie::build(int32_t root, const std::vector<Key>& keys) {
  std::vector<Range> todo = {{root, 0, static_cast<int32_t>(keys.size()), 0}};
  std::vector<Range> children;
  std::vector<uint8_t> codes;
  while (!todo.empty()) {
    const Range range = todo.back();
    todo.pop_back();
    children.clear();
    codes.clear();
    for (int32_t i = range.begin; i < range.end; ++i) {
      const Key& key = keys[i];
      if (static_cast<int32_t>(key.codes.size()) == range.depth) {
        nodes_[range.node].token = key.token;
        continue;
      }
      const uint8_t code = key.codes[range.depth];
      if (codes.empty() || codes.back() != code) {
        codes.push_back(code);
        children.push_back({0, i, i, range.depth + 1});
      }
      children.back().end = i + 1;
    }
    if (codes.empty()) continue;
    const int32_t base = find_base(codes);
    nodes_[range.node].base = base;
    for (size_t i = 0; i < codes.size(); ++i) {
      children[i].node = base + codes[i];
      nodes_[children[i].node].parent = range.node;
    }
    todo.insert(todo.end(), children.begin(), children.end());
  }
}

// Returns a base for which the nodes of all children are free, by first fit. Most nodes have one
// child. For such a node the search returns the first free node. For other nodes it starts behind
// the part of the array that is nearly full. Otherwise the build time would be quadratic in the
// size of the vocabulary.
int32_t WordPieceTrie::find_base(const std::vector<uint8_t>& codes) {
  int32_t& from = codes.size() == 1 ? first_free_ : search_from_;
  int32_t taken = 0;
  for (int32_t slot = std::max<int32_t>(from, codes.front());; ++slot) {
    const int32_t base = slot - codes.front();
    const int32_t needed = base + code_count_;
    if (static_cast<int32_t>(nodes_.size()) < needed) nodes_.resize(needed + needed / 8);
    if (nodes_[slot].parent >= 0) {
      ++taken;
      continue;
    }
    const bool fits = std::all_of(codes.begin(), codes.end(),
                                  [&](uint8_t code) { return nodes_[base + code].parent < 0; });
    if (!fits) continue;
    const int32_t tried = slot - from + 1;
    if (codes.size() == 1 || taken * 8 >= tried * 7) from = slot;
    return base;
  }
}

}  // namespace bert_qa
