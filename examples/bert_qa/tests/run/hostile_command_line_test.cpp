// Tests random command lines. Each must be refused with code 64, or start a run. If a path does not
// suit its flag, the run must end with a code for files before the first step.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "bert_qa/run/command_line.h"
#include "bert_qa/run/commands.h"
#include "support/scratch_folder.h"
#include "support/source_tree.h"
#include "support/torch_doctest.h"
#include "terminal/console.h"

using namespace bert_qa;

namespace {

using Words = std::vector<std::string>;

CommandLine parse(const Words& words) {
  std::vector<const char*> arguments{"bert_qa"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

// Returns the names of the flags that a command's help lists.
Words flags_of(const std::string& command) {
  const std::string help = parse({command, "--help"}).help;
  Words flags;
  for (size_t at = 0; (at = help.find("  --", at)) != std::string::npos;) {
    at += 2;
    flags.push_back(help.substr(at, help.find_first_of(" ,\n", at) - at));
  }
  return flags;
}

// Returns the exit code of parsing. It is 0 if the command line is accepted.
int code_of(const Words& words) {
  try {
    parse(words);
    return 0;
  } catch (const fsdp::InvalidArgument& error) {
    CHECK_FALSE(error.text().what.empty());
    CHECK_FALSE(error.text().hint.empty());
    return static_cast<int>(error.code());
  }  // an exception of another type fails the test with its text
}

// Adds a flag and its value. At random they are two words, or one word with `=`.
void add(Words& words, const std::string& flag, const std::string& value, std::mt19937& random) {
  if (random() % 2 == 0) {
    words.push_back(flag + "=" + value);
  } else {
    words.insert(words.end(), {flag, value});
  }
}

int code_of_run(const Words& words) {
  try {
    const CommandLine line = parse(words);
    const fsdp::Mesh mesh = fsdp::Mesh::single();
    fsdp::ErrorPlace place;
    terminal::Console silent(nullptr);
    if (line.settings.command == Command::kFinetune) {
      finetune(line.settings, mesh, place, silent);
    } else {
      answer_file(line.settings, mesh, silent);
    }
    return 0;
  } catch (const fsdp::Error& error) {
    INFO(error.what());
    CHECK_FALSE(error.text().what.empty());
    return static_cast<int>(error.code());
  }
}

}  // namespace

TEST_CASE(
    "flags in any order, with any value or none, are accepted or refused with 64 and a hint") {
  const Words values = {"",
                        "-1",
                        "0",
                        "1",
                        "1.5",
                        "-0",
                        "nan",
                        "inf",
                        "1e9",
                        "1e400",
                        "0x1",
                        "1,2",
                        "true",
                        "all",
                        "tiny",
                        "/tmp",
                        "--seed",
                        "--",
                        "\xff",
                        "a\nb",
                        "5GB",
                        "float16",
                        "auto",
                        "learnable",
                        "{}",
                        "[1]",
                        "%s%n",
                        "9223372036854775807",
                        "99999999999999999999"};
  std::mt19937 random(20);
  const auto one_of = [&](const Words& words) { return words[random() % words.size()]; };
  int refused = 0;
  for (const char* command : {"init", "finetune", "predict", "evaluate"}) {
    const Words flags = flags_of(command);
    REQUIRE(flags.size() > 15);
    for (int i = 0; i < 250; ++i) {
      Words words{command};
      for (size_t given = random() % 8; given > 0; --given) {
        const std::string flag = one_of(flags);
        if (flag == "--help") continue;
        random() % 8 == 0 ? words.push_back(flag) : add(words, flag, one_of(values), random);
      }
      if (random() % 8 == 0) words.insert(words.begin() + random() % words.size(), one_of(values));
      CAPTURE(fmt::format("{}", fmt::join(words, " ")));
      const int code = code_of(words);
      CHECK((code == 0 || code == 64));
      refused += code == 64 ? 1 : 0;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE("an empty word, as a variable that is not set leaves it, is refused wherever it stands") {
  for (const Words& words : {Words{"", "init"}, Words{"init", ""}, Words{"init", "", "--seed", "1"},
                             Words{"finetune", "--no-shuffle", "", "--seed", "1"}}) {
    CAPTURE(fmt::format("{}", fmt::join(words, " ")));
    CHECK(code_of(words) == 64);
  }
}

TEST_CASE("a flag is never the value of the one before it") {
  for (const char* command : {"init", "finetune", "predict", "evaluate"}) {
    for (const std::string& flag : flags_of(command)) {
      if (flag == "--help") continue;
      CAPTURE(flag);
      CHECK(code_of({command, flag, "--no-such-flag"}) == 64);
      CHECK(code_of({command, flag, "--output-dir", "--seed", "--model"}) == 64);
    }
  }
  const Words run{"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir"};
  Words swallowed = run;
  swallowed.insert(swallowed.end(), {"--max-steps", "--overwrite-output-dir"});
  CHECK(code_of(swallowed) == 64);
  swallowed = run;
  swallowed.push_back("--overwrite-output-dir");
  CHECK(code_of(swallowed) == 64);
}

TEST_CASE("numbers without a sense are refused, or are runs that end") {
  const fsdp::ScratchFolder place;
  const auto code = [&](const std::string& flag, const std::string& value) {
    CAPTURE(flag + "=" + value);
    return code_of_run({"finetune", "--preset", "tiny", "--data", "synthetic", "--max-seq-length",
                        "16", "--max-steps", "0", "--output-dir", place / flag, flag, value});
  };
  CHECK(code("--seed", "-1") == 64);
  CHECK(code("--gradient-accumulation-steps", "1000000000000") == 64);
  CHECK(code("--max-train-samples", "0") == 78);
  // This is fast, because samples are not counted one by one.
  CHECK(code("--max-train-samples", "1000000000000") == 0);
  CHECK(code("--per-device-train-batch-size", "1000000000") == 78);  // refused by the plan
}

TEST_CASE("a path that is a folder, missing, no file, empty or garbage ends a run with its code") {
  const fsdp::ScratchFolder place;
  const std::string vocabulary =
      fsdp::source_file("examples/bert_qa/data/bert-base-uncased-vocab.txt");
  const std::string questions = fsdp::source_file("examples/bert_qa/data/xquad-en-dev.json");
  const std::string missing = place / "missing", empty = place.write("empty", ""),
                    garbage = place.write("garbage", "\x01{\xff\n\"tokens"),
                    below = empty + "/below";
  const std::set<int> of_files = {65, 73, 74};
  for (const char* flag : {"--vocab-file", "--train-file", "--validation-file", "--qa-head",
                           "--output-dir", "--trace", "--model"}) {
    for (const std::string& path :
         {std::string(place.path()), missing, std::string("/dev/null"), empty, garbage, below}) {
      CAPTURE(flag);
      CAPTURE(path);
      const std::string name = flag;
      // Skips paths that the program would create, and runs that would train.
      if (path == missing && (name == "--output-dir" || name == "--trace")) continue;
      if (path == place.path() && name == "--output-dir") continue;
      if (name == "--trace" && (path == empty || path == garbage || path == "/dev/null")) continue;
      Words words{"finetune",
                  "--train-file",
                  questions,
                  "--max-train-samples",
                  "1",
                  "--max-steps",
                  "0",
                  "--max-seq-length",
                  "64",
                  "--doc-stride",
                  "16",
                  "--output-dir",
                  place / "out",
                  "--overwrite-output-dir",
                  "--vocab-file",
                  vocabulary};
      if (name != "--model") words.insert(words.end(), {"--preset", "tiny"});
      words.insert(words.end(), {name, path});
      CHECK(of_files.contains(code_of_run(words)));
    }
  }
}
