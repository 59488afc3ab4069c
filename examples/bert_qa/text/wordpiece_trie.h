// Finds word pieces by greedy longest match in a double-array trie of the vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// The trie. A step from a node costs two table reads: one for the code of the byte and one for the
// child. One array holds both kinds of pieces. Pieces that start a word are below kWordRoot, and
// pieces that are written "##…" are below kContinuationRoot.
class WordPieceTrie {
 public:
  static constexpr int32_t kWordRoot = 0;
  static constexpr int32_t kContinuationRoot = 1;

  // With `fold_ascii_case`, an ASCII capital matches as its small letter, so that lower-casing
  // costs no time. Vocabulary entries with ASCII capitals then never match, as in any tokenizer
  // that lower-cases.
  WordPieceTrie(const WordPieceVocab& vocab, bool fold_ascii_case);

  // Returns the child of `node` along `byte`, or -1.
  int32_t child(int32_t node, uint8_t byte) const {
    const int32_t next = nodes_[node].base + codes_[byte];
    return nodes_[next].parent == node ? next : -1;
  }
  // Returns the id of the token that ends at `node`, or -1.
  int32_t token(int32_t node) const { return nodes_[node].token; }

 private:
  struct Node {
    int32_t base = 0;     // the child along code c is at base + c
    int32_t parent = -1;  // -1: free
    int32_t token = -1;
  };
  struct Key {
    std::vector<uint8_t> codes;
    int32_t token;
  };
  struct Range {  // keys [begin, end) have the same first `depth` codes, which lead to `node`
    int32_t node, begin, end, depth;
  };

  void assign_codes(const WordPieceVocab& vocab, bool fold_ascii_case);
  std::vector<Key> sorted_keys(const WordPieceVocab& vocab, bool fold_ascii_case,
                               bool continuation) const;
  void build(int32_t root, const std::vector<Key>& keys);
  int32_t find_base(const std::vector<uint8_t>& codes);

  // The codes of bytes. Bytes that occur in no token have code 0. No node has a child for code 0.
  std::array<uint8_t, 256> codes_{};
  int32_t code_count_ = 1;
  std::vector<Node> nodes_;
  int32_t first_free_ = 2;   // start of the search for a node with one child
  int32_t search_from_ = 2;  // start of the search for other nodes
};

}  // namespace bert_qa
