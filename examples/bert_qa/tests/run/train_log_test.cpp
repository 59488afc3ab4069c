#include "bert_qa/run/train_log.h"

#include "support/scratch_folder.h"
#include "support/torch_doctest.h"

using namespace bert_qa;
using fsdp::read_whole;

namespace {

// Continues a log with this content after `step`, writes the next step, and returns the note.
std::string continued(const fsdp::ScratchFolder& folder, const std::string& content, int64_t step) {
  const std::filesystem::path file = folder.write("train_log.jsonl", content);
  std::string note;
  TrainLog log(file, step, note);
  log.append({.step = step + 1});
  return note;
}

}  // namespace

TEST_CASE("a log that is continued keeps the valid lines up to the step, byte for byte") {
  const fsdp::ScratchFolder folder;
  const auto kept = [&](const std::string& kept) {
    const std::string text = read_whole(folder / "train_log.jsonl");
    CHECK(text.starts_with(kept + "{\"step\":3,\"loss\":"));
    CHECK(text.find('\n', kept.size()) == text.size() - 1);
  };
  const std::string first = "{\"step\": 1, \"more\": [1e5]}\n", second = "{\"step\":2}\n";
  CHECK(continued(folder, first + second, 2) ==
        "train_log.jsonl: continued after step 2, 0 later lines were dropped");
  kept(first + second);
  CHECK(continued(folder, first + second + "{\"step\":3}\n{\"step\":4}\n", 2) ==
        "train_log.jsonl: continued after step 2, 2 later lines were dropped");
  kept(first + second);
  CHECK(continued(folder, first + "{\"ste\n[2]\n" + second + "{\"step\":2}", 2) ==
        "train_log.jsonl: continued after step 2, 0 later lines were dropped, 3 damaged lines were "
        "dropped");
  kept(first + second);
  CHECK(continued(folder, second + std::string(100, '\0'), 2) ==
        "train_log.jsonl: continued after step 2, 0 later lines were dropped, 1 damaged line was "
        "dropped, 1 earlier line was missing");
  kept(second);
  CHECK(folder.names() == std::vector<std::string>{"train_log.jsonl"});
}

TEST_CASE("a log that is missing is begun, and the note names its gap") {
  const fsdp::ScratchFolder folder;
  std::string note;
  TrainLog log(folder / "train_log.jsonl", 7, note);
  CHECK(note ==
        "train_log.jsonl: continued after step 7, 0 later lines were dropped, 7 earlier lines were "
        "missing");
  CHECK(read_whole(folder / "train_log.jsonl").empty());
}

TEST_CASE("a log that cannot be read is an error with its name") {
  const fsdp::ScratchFolder folder;
  std::filesystem::create_directory(folder / "train_log.jsonl");
  std::string note;
  CHECK_THROWS_WITH_AS(TrainLog(folder / "train_log.jsonl", 1, note),
                       doctest::Contains("the training log cannot be read ("), fsdp::IoError);
}
