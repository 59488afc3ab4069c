// A key of a question file that is not the schema's, and the one that its writer may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// Keys of one object that the schema does not know.
class UnknownKeys {
 public:
  void add(std::string_view key);
  // The one that is nearly `meant` (another case or separator, one or two letters, a plural), or
  // another common word for it ("rows" for "data"); empty if there is none.
  std::string_view like(std::string_view meant) const;
  // " 'answer' 'title' and 3 more"; empty without one.
  std::string list() const;

 private:
  static constexpr size_t kMaxKept = 16;

  std::vector<std::string> keys_;
  size_t count_ = 0;
};

// "the key 'answer' is not known, 'answers' is meant"
std::string misspelled(std::string_view key, std::string_view meant);

}  // namespace bert_qa
