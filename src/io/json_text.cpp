#include "io/json_text.h"

#include <fmt/format.h>

// The hash functions are compiled into this file, so that programs with this library need no hash
// package.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_kind.h"

namespace fsdp {
namespace {

using nlohmann::json;

// An iterator over the text that keeps the cursor at its own position, so that an error of a
// handler can name the byte.
class FollowedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  FollowedIterator(const char* at, const char** position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  FollowedIterator& operator++() {
    *position_ = ++at_;
    return *this;
  }
  FollowedIterator operator++(int) {
    FollowedIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const FollowedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const FollowedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** position_;
};

// Returns the index of the quote that closes the string opened at `open`. If there is none, returns
// the size of the text.
size_t end_of_string(std::string_view text, size_t open) {
  size_t at = open + 1;
  // A backslash escapes the next character, which may be a quote.
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at, text.size());
}

bool ends_a_token(char c) {
  return c == ',' || c == ':' || c == '"' || c == '{' || c == '}' || c == '[' || c == ']';
}

// Throws if a string, a number or white space exceeds the limit, because the library copies each of
// them.
void check_lengths(const JsonText& source, const JsonCursor& cursor, JsonLimits limits) {
  const std::string_view text = source.text;
  size_t start = 0;  // start of the token that has not ended yet
  const auto check = [&](size_t end, const char* what) {
    if (static_cast<int64_t>(end - start) <= limits.string_bytes) return;
    cursor.fail_at(static_cast<int64_t>(start),
                   fmt::format("{} has more than {} bytes", what, limits.string_bytes));
  };
  // Numbers and white space have no end character. Each of them ends where the next token begins.
  for (size_t at = 0; at < text.size(); ++at) {
    if (!ends_a_token(text[at])) continue;
    check(at, "a number or white space");
    start = at;
    if (text[at] == '"') {
      at = end_of_string(text, at);
      check(at, "a string");
    }
    start = at + 1;
  }
  if (start < text.size()) check(text.size(), "a number or white space");
}

// Throws for characters that the library mishandles: it stops silently at a NUL, and it skips a
// byte order mark. If the file is of another kind, the error names that kind.
void check_characters(const JsonText& source, const JsonCursor& cursor) {
  const std::string_view text = source.text;
  refuse_other_kind(text, source.file, "JSON");
  if (text.empty()) cursor.fail_at(0, "the JSON text is empty");
  if (text.starts_with("\xef\xbb\xbf")) {
    cursor.fail_at(0, "the JSON text starts with a byte order mark", "save it as plain UTF-8");
  }
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    cursor.fail_at(static_cast<int64_t>(nul), "the JSON text has a NUL character");
  }
}

// Returns the reason in "[json.exception.parse_error.101] parse error at line 1, column 9: syntax
// error while parsing object key - invalid literal; last read: '…'; expected string literal". Drops
// the library's name, the position (because the error of this parser contains it), and tokens
// (because they may be megabytes long).
std::string reason_of(std::string text, std::string_view last_token) {
  if (const size_t bracket = text.find("] "); bracket != text.npos) text.erase(0, bracket + 2);
  if (text.starts_with("parse error at ")) {
    if (const size_t colon = text.find(": "); colon != text.npos) text.erase(0, colon + 2);
  }
  constexpr std::string_view kLastRead = "; last read: '";
  if (const size_t at = text.find(kLastRead); at != text.npos) {
    const size_t length = std::min(kLastRead.size() + last_token.size() + 1, text.size() - at);
    text.replace(at, length, fmt::format(" near {}", quoted_name(last_token)));
  }
  constexpr size_t kMaxReasonBytes = 300;
  // Shortening the reason may split a UTF-8 character. This does no harm, because printable()
  // escapes its bytes.
  if (text.size() > kMaxReasonBytes) text.resize(kMaxReasonBytes);
  return printable(text);
}

// A handler of the library's events. It checks the rules that the library does not check, and
// passes the values to a JsonEvents object. Its functions always return true, because errors are
// exceptions.
class StrictSax final : public nlohmann::json_sax<json> {
 public:
  StrictSax(JsonEvents& events, const JsonCursor& cursor, JsonLimits limits)
      : events_(events), cursor_(cursor), limits_(limits) {}

  bool null() override { return events_.on_null(), true; }
  bool boolean(bool value) override { return events_.on_boolean(value), true; }
  bool number_integer(number_integer_t value) override { return events_.on_negative(value), true; }
  bool number_unsigned(number_unsigned_t value) override {
    return events_.on_unsigned(value), true;
  }
  bool number_float(number_float_t value, const string_t& text) override {
    // The library reports an integer beyond 64 bits as a float. Only the text shows that it is an
    // integer.
    if (!limits_.wide_integers && text.find_first_of(".eE") == text.npos) {
      cursor_.fail(fmt::format("the integer {} does not fit 64 bits", shortened(text)));
    }
    return events_.on_real(value), true;
  }
  bool string(string_t& value) override { return events_.on_string(value), true; }
  bool binary(binary_t&) override { cursor_.fail("the JSON has binary data"); }
  bool start_object(std::size_t) override {
    descend();
    keys_.emplace_back();
    return events_.start_object(), true;
  }
  bool key(string_t& key) override {
    if (++key_count_ > limits_.keys) {
      cursor_.fail(fmt::format("nested objects have more than {} keys in all", limits_.keys));
    }
    const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
    if (!keys_.back().emplace(hash.high64, hash.low64).second) {
      cursor_.fail(fmt::format("the key {} appears twice in one object", quoted_name(key)));
    }
    return events_.on_key(key), true;
  }
  bool end_object() override {
    --depth_;
    // Only the keys of open objects count, because only their hashes are held.
    key_count_ -= std::ssize(keys_.back());
    keys_.pop_back();
    return events_.end_object(), true;
  }
  bool start_array(std::size_t) override {
    descend();
    return events_.start_array(), true;
  }
  bool end_array() override {
    --depth_;
    return events_.end_array(), true;
  }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    // `position` is the number of characters read, including the end of the text.
    cursor_.fail_at(static_cast<int64_t>(position) - 1,
                    "broken JSON: " + reason_of(error.what(), last_token));
  }

 private:
  static std::string shortened(const std::string& number) {
    return number.size() <= 40 ? number : number.substr(0, 40) + "…";
  }
  void descend() {
    if (++depth_ > limits_.depth) {
      cursor_.fail(fmt::format("the JSON is nested deeper than {} levels", limits_.depth));
    }
  }

  JsonEvents& events_;
  const JsonCursor& cursor_;
  const JsonLimits limits_;
  int depth_ = 0;
  int64_t key_count_ = 0;
  // The hashes of the keys of open objects. A key may have megabytes, so it is not copied. Two
  // different keys practically never share a hash of 128 bits. The set is ordered and has no hash
  // table, which an attacker could make slow by keys that collide.
  std::vector<std::set<std::pair<uint64_t, uint64_t>>> keys_;
};

// Builds a document. A parent does not move while its child grows, so `open_` can hold pointers.
class DocumentEvents final : public JsonEvents {
 public:
  explicit DocumentEvents(int64_t limit) : limit_(limit) {}
  void on_null() override { put(nullptr); }
  void on_boolean(bool value) override { put(value); }
  void on_unsigned(uint64_t value) override { put(value); }
  void on_negative(int64_t value) override { put(value); }
  void on_real(double value) override { put(value); }
  void on_string(std::string& value) override { put(std::move(value)); }
  void on_key(std::string& key) override { key_ = std::move(key); }
  void start_object() override { open_.push_back(put(json::object())); }
  void end_object() override { open_.pop_back(); }
  void start_array() override { open_.push_back(put(json::array())); }
  void end_array() override { open_.pop_back(); }

  json take() { return std::move(root_); }

 private:
  json* put(json value) {
    if (++value_count_ > limit_) fail(fmt::format("the JSON has more than {} values", limit_));
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  json root_;
  std::vector<json*> open_;
  std::string key_;
  const int64_t limit_;
  int64_t value_count_ = 0;
};

}  // namespace

void JsonCursor::fail(std::string what, std::string hint) const {
  fail_at(at_ - source_.text.data() - 1, std::move(what), std::move(hint));
}

void JsonCursor::fail_at(int64_t index, std::string what, std::string hint) const {
  const auto size = static_cast<int64_t>(source_.text.size());
  index = std::clamp<int64_t>(index, 0, size);
  const std::string_view before = source_.text.substr(0, static_cast<size_t>(index));
  const int64_t byte = source_.first_byte + index;
  std::string where = source_.one_line
                          ? fmt::format("{}, byte {}", source_.file, byte)
                          : fmt::format("{}, line {}, byte {}", source_.file,
                                        1 + std::count(before.begin(), before.end(), '\n'), byte);
  throw IoError(ExitCode::kCorruptData,
                {.what = std::move(what), .where = std::move(where), .hint = std::move(hint)});
}

void parse_json(const JsonText& text, JsonEvents& events, JsonLimits limits) {
  // The cursor is on this function's stack. Events may use it only during the call.
  JsonCursor cursor(text);
  check_characters(text, cursor);
  check_lengths(text, cursor, limits);
  StrictSax sax(events, cursor, limits);
  events.cursor_ = &cursor;
  const char* begin = text.text.data();
  json::sax_parse(FollowedIterator(begin, cursor.position()),
                  FollowedIterator(begin + text.text.size(), cursor.position()), &sax);
  events.cursor_ = nullptr;
}

json parse_json(const JsonText& text, JsonLimits limits) {
  DocumentEvents events(limits.values);
  parse_json(text, events, limits);
  return events.take();
}

}  // namespace fsdp
