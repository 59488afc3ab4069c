// Finds the key of the schema that an unknown key in a question file may stand for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// The keys of one object that are not in the schema.
class UnknownKeys {
 public:
  void add(std::string_view key);
  // Returns the unknown key that is similar to `meant` or that is a common word for it ("rows" for
  // "data"). Similar means another case or separator, one or two other letters, or a plural.
  // Returns an empty text if there is none.
  std::string_view like(std::string_view meant) const;
  // Returns " 'answer' 'title' and 3 more", or an empty text if there are no keys.
  std::string list() const;

 private:
  static constexpr size_t kMaxKept = 16;

  std::vector<std::string> keys_;
  size_t count_ = 0;
};

// Returns "the key 'answer' is not known, 'answers' is meant".
std::string misspelled(std::string_view key, std::string_view meant);

}  // namespace bert_qa
