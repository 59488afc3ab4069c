// Parses JSON strictly. It accepts everything that other programs write. It refuses files that can
// only come from an attack or from damage, and names the file, the line and the byte.
//
// Besides syntax errors it refuses: a NUL; a byte order mark; invalid UTF-8; the same key twice in
// one object; an integer that does not fit 64 bits; a number that does not fit a double; nesting, a
// string, a number or white space beyond a limit; more keys or values than a limit; any text after
// the value.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fsdp {

struct JsonText {
  std::string_view text;
  std::string file;        // for messages
  int64_t first_byte = 0;  // offset in the file at which `text` starts
  bool one_line = false;   // messages give only the byte, not the line
};

inline constexpr int64_t kMaxDocumentValues = 1 << 15;

struct JsonLimits {
  int depth = 64;
  int64_t string_bytes = 16 << 20;      // limit also for a number and for white space
  int64_t keys = 1 << 17;               // limit for all open objects together
  int64_t values = kMaxDocumentValues;  // limit for a document
  bool wide_integers = false;           // accept an integer beyond 64 bits as a real number
};

// The limits for configurations, indexes and other documents. Under these limits a document needs
// at most the size of its text plus 16 MiB of memory.
inline constexpr JsonLimits kDocumentLimits{.string_bytes = 2 << 20};

// The position of a parser in the text.
class JsonCursor {
 public:
  explicit JsonCursor(const JsonText& source) : source_(source), at_(source.text.data()) {}

  const char** position() { return &at_; }
  // Throws IoError kCorruptData with `what` and the position of the last character read.
  [[noreturn]] void fail(std::string what, std::string hint = {}) const;
  [[noreturn]] void fail_at(int64_t index, std::string what, std::string hint = {}) const;

 private:
  const JsonText& source_;
  const char* at_;
};

// The base class of handlers, which receive the values of a document. A handler calls fail() to
// refuse a value.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void on_null() = 0;
  virtual void on_boolean(bool value) = 0;
  virtual void on_unsigned(uint64_t value) = 0;
  virtual void on_negative(int64_t value) = 0;  // also called for the spelling -0
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
// Effects: uses memory in proportion to the longest string, to the number of keys and to the data
//   that the handler keeps; does not copy the text; nesting does not use the call stack.
// Errors: IoError kCorruptData.
void parse_json(const JsonText& text, JsonEvents& events, JsonLimits limits = {});

// Parses `text` into a document of at most `limits.values` values.
nlohmann::json parse_json(const JsonText& text, JsonLimits limits = kDocumentLimits);

}  // namespace fsdp
