// Reads files of Natural Questions, which have one record per line, plain or compressed with gzip.
//
// Two formats are supported. The original format has document_tokens[].{token, html_token}. The
// simplified format has document_text, whose tokens are separated by single spaces; its tags are
// tokens like <P>. Both have example_id, question_text, long_answer_candidates[] and annotations[].
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/nq/nq_record.h"
#include "bert_qa/text/line_file.h"

namespace bert_qa {

struct NqReaderOptions {
  // Requires at least one annotation in each record. Prediction does not need annotations.
  bool need_annotations = true;
  // Skips and counts bad records instead of throwing.
  bool skip_bad_rows = false;
};

// A reader of a file. It holds one record in memory.
class NqReader {
 public:
  // Errors: those of LineFile.
  NqReader(const std::filesystem::path& path, const NqReaderOptions& options);

  // Sets `record` to the next one, and returns false at the end of the file. Skips blank lines.
  // Errors: IoError kCorruptData if a record does not match the schema, or if its spans contradict
  //   each other or its document; the error names the file and the line. Those of LineFile.
  bool next(NqRecord& record);
  // Returns a line about each skipped record, which names the file and the line.
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  std::filesystem::path path_;
  NqReaderOptions options_;
  LineFile lines_;
  std::vector<std::string> skipped_;
};

// Parses one line. `where` names the file and the line in errors.
// Errors: those of NqReader::next.
void parse_nq_record(std::string_view line, const std::string& where, bool need_annotations,
                     NqRecord& record);

}  // namespace bert_qa
