// Finds the schema's key that the writer of a question file may have meant by an unknown one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// Keys of one object that the schema lacks.
class UnknownKeys {
 public:
  void add(std::string_view key);
  // Returns the key that is similar to `meant` (another case or separator, one or two letters, a
  // plural), or another common word for it ("rows" for "data"); empty if there is none.
  std::string_view like(std::string_view meant) const;
  // Returns " 'answer' 'title' and 3 more"; empty if there are no keys.
  std::string list() const;

 private:
  static constexpr size_t kMaxKept = 16;

  std::vector<std::string> keys_;
  size_t count_ = 0;
};

// Returns "the key 'answer' is not known, 'answers' is meant".
std::string misspelled(std::string_view key, std::string_view meant);

}  // namespace bert_qa
