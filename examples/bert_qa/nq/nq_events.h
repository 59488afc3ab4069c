// Converts the JSON events of one line to a record of Natural Questions. This part of the reader
// follows the nesting of the line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/nq/nq_record.h"
#include "io/json_text.h"

namespace bert_qa {

// A receiver of the events of one line. Keys that are not in the schema are skipped. The tokens of
// a page are copied directly to the record's document.
class NqEvents final : public fsdp::JsonEvents {
 public:
  // The places of the schema: the objects, and the arrays between them.
  enum class Scope : uint8_t {
    kRecord,
    kTokens,
    kToken,
    kCandidates,
    kCandidate,
    kAnnotations,
    kAnnotation,
    kLongAnswer,
    kShortAnswers,
    kShortAnswer,
    kSkipped,
  };
  // The type of a value.
  enum class Type : uint8_t { kNone, kInteger, kText, kFlag, kObject, kArray };
  // A key of the schema.
  struct Key {
    Scope in;
    std::string_view name;
    Type type;
    Scope below = Scope::kSkipped;  // of an object or an array
    bool required = true;
  };

  // Requires: `need_annotations` is false only for questions that are not trained or scored.
  NqEvents(NqRecord& record, bool need_annotations)
      : record_(record), need_annotations_(need_annotations) {}

  void on_null() override { value(Type::kNone, "null"); }
  void on_boolean(bool given) override;
  void on_unsigned(uint64_t given) override;
  void on_negative(int64_t given) override;
  void on_real(double) override { value(Type::kNone, "a number with a fraction"); }
  void on_string(std::string& given) override;
  void on_key(std::string& key) override;
  void start_object() override { open(Type::kObject); }
  void end_object() override;
  void start_array() override { open(Type::kArray); }
  void end_array() override { levels_.pop_back(); }

 private:
  // An open object or array.
  struct Level {
    Scope scope;
    const Key* key = nullptr;  // last key of an object; null: not in the schema
    uint32_t seen = 0;         // keys of the schema, by their number
  };
  // The values of an object that is not the record.
  struct Fields {
    NqSpan span;
    int64_t candidate = -1;
    bool flag = false;
    std::string text;
  };

  bool value(Type type, const char* got);
  void integer(int64_t given);
  void open(Type type);
  void require_keys(const Level& level) const;
  void close(const Level& level);
  void set_document_text(std::string_view text);

  NqRecord& record_;
  const bool need_annotations_;
  std::vector<Level> levels_;
  Fields fields_;
  NqAnnotation annotation_;
};

}  // namespace bert_qa
