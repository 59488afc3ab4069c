// Parses JSON strictly: accepts all that other programs write, and refuses files that only an
// attack or damage explains, with the file, the line and the byte.
//
// Beyond plain syntax errors it refuses: a NUL anywhere, a byte order mark, invalid UTF-8, a key
// twice in one object, an integer that does not fit 64 bits, a number that does not fit a double,
// nesting beyond a limit, a string, number or white space beyond a limit, more keys or values than
// a limit, anything after the value.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fsdp {

struct JsonText {
  std::string_view text;
  std::string file;        // for messages
  int64_t first_byte = 0;  // the byte of the file at which `text` starts
  bool one_line = false;   // messages give the byte alone, not the line
};

inline constexpr int64_t kMaxDocumentValues = 1 << 15;

struct JsonLimits {
  int depth = 64;
  int64_t string_bytes = 16 << 20;      // also of a number or of white space
  int64_t keys = 1 << 17;               // of all objects that are open at once
  int64_t values = kMaxDocumentValues;  // of a document
  bool wide_integers = false;           // accept an integer beyond 64 bits as a real number
};

// For files that describe others: a document then takes at most its text's size and 16 MiB.
inline constexpr JsonLimits kDocumentLimits{.string_bytes = 2 << 20};

// The position of a parser.
class JsonCursor {
 public:
  explicit JsonCursor(const JsonText& source) : source_(source), at_(source.text.data()) {}

  const char** position() { return &at_; }
  // Throws IoError kCorruptData with `what` and the place of the last character read.
  [[noreturn]] void fail(std::string what, std::string hint = {}) const;
  [[noreturn]] void fail_at(int64_t index, std::string what, std::string hint = {}) const;

 private:
  const JsonText& source_;
  const char* at_;
};

// A receiver of a document's values. A handler refuses a value with fail().
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void on_null() = 0;
  virtual void on_boolean(bool value) = 0;
  virtual void on_unsigned(uint64_t value) = 0;
  virtual void on_negative(int64_t value) = 0;  // also the spelling -0
  virtual void on_real(double value) = 0;
  virtual void on_string(std::string& value) = 0;
  virtual void on_key(std::string& key) = 0;
  virtual void start_object() = 0;
  virtual void end_object() = 0;
  virtual void start_array() = 0;
  virtual void end_array() = 0;

 protected:
  [[noreturn]] void fail(std::string what, std::string hint = {}) const {
    cursor_->fail(std::move(what), std::move(hint));
  }

 private:
  friend void parse_json(const JsonText&, JsonEvents&, JsonLimits);
  const JsonCursor* cursor_ = nullptr;
};

// Parses `text` and passes each value to `events`.
// Effects: memory in proportion to the longest string, the number of keys and what the handler
//          keeps; the text is not copied and nesting does not use the call stack.
// Errors: IoError kCorruptData.
void parse_json(const JsonText& text, JsonEvents& events, JsonLimits limits = {});

// Parses `text` into a document of at most `limits.values` values.
nlohmann::json parse_json(const JsonText& text, JsonLimits limits = kDocumentLimits);

}  // namespace fsdp
