#include "fsdp/run_options.h"

#include <doctest/doctest.h>

#include "runtime/dtype.h"

namespace fsdp {
namespace {

using Words = std::vector<const char*>;

RunOptions parse(Words words, ProgramFlags program = {}, RunOptions defaults = {}) {
  words.insert(words.begin(), "train");
  return RunOptions::parse(static_cast<int>(words.size()), words.data(), program,
                           std::move(defaults));
}

// Returns the whole error text of a refused command line.
std::string refusal(Words words, ProgramFlags program = {}) {
  try {
    parse(std::move(words), program);
  } catch (const InvalidArgument& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "(accepted)";
}

TEST_CASE("without flags a run is what MeshOptions and Options are, on GPUs where there are some") {
  const RunOptions run = parse({});
  CHECK(run.mesh.device == DeviceKind::kAuto);
  CHECK(run.mesh.timeout == MeshOptions{}.timeout);
  CHECK_FALSE(run.ablate_communication);
  CHECK(run.engine.strategy == Options{}.strategy);
  CHECK_FALSE(run.engine.mixed_precision.param_dtype.has_value());
  CHECK(run.trace_file.empty());
  CHECK(run.other_arguments.empty());
  CHECK_FALSE(run.help);
}

TEST_CASE("every flag of the engine reaches its option") {
  const RunOptions run =
      parse({"--device", "cuda", "--strategy", "zero1", "--param-dtype", "bf16", "--reduce-dtype",
             "bfloat16", "--reshard-after-forward", "false", "--prefetch", "3", "--map-shards",
             "False", "--nccl-registration", "windows", "--timeout", "2.5"});
  CHECK(run.mesh.device == DeviceKind::kCuda);
  CHECK(run.engine.strategy == Strategy::kZero1);
  CHECK(run.engine.mixed_precision.param_dtype == scalar_type_of(DType::kBFloat16));
  CHECK(run.engine.mixed_precision.reduce_dtype == scalar_type_of(DType::kBFloat16));
  CHECK_FALSE(run.engine.reshard_after_forward);
  CHECK(run.engine.prefetch_units == 3);
  CHECK_FALSE(run.engine.tuning.map_shards);
  CHECK(run.engine.tuning.nccl_registration == NcclRegistration::kWindows);
  CHECK(run.mesh.timeout == std::chrono::milliseconds(2500));
}

TEST_CASE("every choice of a flag can be made") {
  CHECK(parse({"--device", "auto"}).mesh.device == DeviceKind::kAuto);
  CHECK(parse({"--device", "cpu"}).mesh.device == DeviceKind::kCpu);
  CHECK(parse({"--strategy", "full-shard"}).engine.strategy == Strategy::kFullShard);
  CHECK(parse({"--strategy", "zero2"}).engine.strategy == Strategy::kZero2);
  for (const auto& [name, strategy] : {std::pair{"replicate", Strategy::kReplicate},
                                       {"ddp", Strategy::kReplicate},
                                       {"zero1", Strategy::kZero1},
                                       {"zero3", Strategy::kFullShard},
                                       {"fsdp", Strategy::kFullShard},
                                       {"hybrid-shard", Strategy::kHybridShard},
                                       {"hsdp", Strategy::kHybridShard},
                                       {"hfsdp", Strategy::kHfsdp},
                                       {"hpz", Strategy::kHpz}}) {
    CHECK(parse({"--strategy", name}).engine.strategy == strategy);
  }
  CHECK(parse({"--shard", "4", "--replicate", "2"}).mesh.shard == 4);
  CHECK(parse({"--shard", "4", "--replicate", "2"}).mesh.replicate == 2);
  CHECK(parse({"--recompute", "2"}).engine.recompute == 2);
  CHECK(parse({"--keep-last-units", "3"}).engine.keep_last_units == 3);
  CHECK(parse({}).engine.tuning.nccl_registration == NcclRegistration::kOff);
  for (const auto& [name, registration] : {std::pair{"off", NcclRegistration::kOff},
                                           {"windows", NcclRegistration::kWindows},
                                           {"zero-cta", NcclRegistration::kZeroCta}}) {
    CHECK(parse({"--nccl-registration", name}).engine.tuning.nccl_registration == registration);
  }
  CHECK(parse({}).engine.memory_limit == 0);
  CHECK(parse({"--memory-limit", "16GiB"}).engine.memory_limit == int64_t{16} << 30);
  CHECK(parse({"--memory-limit=500 MB"}).engine.memory_limit == 500'000'000);
  CHECK(parse({"--memory-limit", "0"}).engine.memory_limit == 0);
  for (const auto& [name, dtype] : {std::pair{"float32", DType::kFloat32},
                                    {"fp32", DType::kFloat32},
                                    {"bfloat16", DType::kBFloat16},
                                    {"float16", DType::kFloat16},
                                    {"fp16", DType::kFloat16}}) {
    CAPTURE(name);
    CHECK(parse({"--param-dtype", name}).engine.mixed_precision.param_dtype ==
          scalar_type_of(dtype));
  }
  for (const char* yes : {"true", "True", "1", "yes", "on"}) {
    CAPTURE(yes);
    CHECK(parse({"--map-shards", "false", "--map-shards", yes}).engine.tuning.map_shards);
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    CAPTURE(no);
    CHECK_FALSE(parse({"--map-shards", no}).engine.tuning.map_shards);
  }
}

TEST_CASE("trace and ablation are flags of a program that serves them, and of no other") {
  const RunOptions run =
      parse({"--trace", "a_b.json", "--ablate", "communication"}, {.diagnostics = true});
  CHECK(run.trace_file == "a_b.json");
  CHECK(run.ablate_communication);
  CHECK(refusal({"--trace", "t"}) == "there is no flag --trace; hint: --help lists the flags");
  CHECK(refusal({"--ablate", "communication"}) ==
        "there is no flag --ablate; hint: --help lists the flags");
  CHECK(refusal({"--ablate", "compute"}, {.diagnostics = true}) ==
        "--ablate cannot be 'compute'; hint: use communication");
  CHECK(refusal({"--trace="}, {.diagnostics = true}) ==
        "--trace cannot be ''; hint: use the name of a file");
}

TEST_CASE("what a step takes is said in a line, or in tables where a program that plans is asked") {
  CHECK(parse({}, {.plans = true}).log_level == LogLevel::kInfo);
  CHECK(parse({"--log_level=debug"}, {.plans = true}).log_level == LogLevel::kDebug);
  CHECK(refusal({"--log-level", "warning"}, {.plans = true}) ==
        "--log-level cannot be 'warning'; hint: use info or debug");
  CHECK(refusal({"--log-level", "debug"}) ==
        "there is no flag --log-level; hint: --help lists the flags");
}

TEST_CASE("flags may be spelled with underscores and with =; the last of several counts") {
  const RunOptions run = parse({"--param_dtype=bf16", "--reshard_after_forward", "false",
                                "--prefetch=0", "--prefetch", "2"});
  CHECK(run.engine.mixed_precision.param_dtype == scalar_type_of(DType::kBFloat16));
  CHECK_FALSE(run.engine.reshard_after_forward);
  CHECK(run.engine.prefetch_units == 2);
}

TEST_CASE("what is left of a command line is spelled alike, and no flag is another one's value") {
  CHECK(parse({"--own_flag=a_b=c", "text_1", "--prefetch", "2", "--last", "-1"}, {.others = true})
            .other_arguments ==
        std::vector<std::string>{"--own-flag", "a_b=c", "text_1", "--last", "-1"});
  CHECK(parse({"--", "--a_b=c"}, {.others = true}).other_arguments ==
        std::vector<std::string>{"--", "--a_b=c"});
  CHECK(refusal({"--trace", "--ablate", "communication"}, {.diagnostics = true})
            .starts_with("--trace has no value; hint: use --trace FILE: "));
  CHECK(refusal({"--device", "--prefetch"}).starts_with("--device has no value; hint: "));
  CHECK(parse({"--trace=--ablate"}, {.diagnostics = true}).trace_file == "--ablate");
}

TEST_CASE("a program's own defaults stay where no flag changes them") {
  const RunOptions run =
      parse({"--prefetch", "2"}, {},
            {.mesh = {.device = DeviceKind::kCpu}, .engine = {.strategy = Strategy::kZero2}});
  CHECK(run.mesh.device == DeviceKind::kCpu);
  CHECK(run.engine.strategy == Strategy::kZero2);
  CHECK(run.engine.prefetch_units == 2);
}

TEST_CASE("what the engine does not know is left to a program that takes it, in order") {
  using Rest = std::vector<std::string>;
  const ProgramFlags others{.others = true};
  const RunOptions run = parse(
      {"file_a", "--seed", "7", "--device=cpu", "--lr=1e-3", "--prefetch", "2", "--help"}, others);
  CHECK(run.other_arguments == Rest{"file_a", "--seed", "7", "--lr", "1e-3", "--help"});
  CHECK_FALSE(run.help);
  CHECK(run.mesh.device == DeviceKind::kCpu);
  CHECK(run.engine.prefetch_units == 2);
  const RunOptions ended = parse({"--prefetch", "2", "--", "--prefetch", "3"}, others);
  CHECK(ended.other_arguments == Rest{"--", "--prefetch", "3"});
  CHECK(ended.engine.prefetch_units == 2);
}

TEST_CASE("a flag that does not exist is refused with the nearest that does") {
  const auto refused = [](const char* word, const std::string& text) {
    CAPTURE(word);
    CHECK(refusal({word, "1"}) == text);
  };
  refused("--devise",
          "there is no flag --devise; hint: did you mean --device? --help lists the "
          "flags");
  refused("--devise=cpu",
          "there is no flag --devise; hint: did you mean --device? --help lists "
          "the flags");
  refused("--param-type",
          "there is no flag --param-type; hint: did you mean --param-dtype? "
          "--help lists the flags");
  refused("--prefetch_units",
          "there is no flag --prefetch_units; hint: did you mean --prefetch? "
          "--help lists the flags");
  refused("--strat",
          "there is no flag --strat; hint: did you mean --strategy? --help lists the "
          "flags");
  refused("--learning-rate", "there is no flag --learning-rate; hint: --help lists the flags");
  refused("-x", "there is no flag -x; hint: --help lists the flags");
  refused("--", "there is no flag --; hint: --help lists the flags");
  refused("", "expected a flag, got ''; hint: --help lists the flags");
  refused("cpu", "expected a flag, got 'cpu'; hint: --help lists the flags");
}

TEST_CASE("a program refuses with its own flags beside the engine's") {
  const auto nearest_with = [](const char* word) -> std::string {
    try {
      RunOptions{}.refuse({word}, {"--seed", "--max-steps"});
    } catch (const InvalidArgument& error) {
      return error.text().hint;
    }
  };
  CHECK(nearest_with("--max-step") == "did you mean --max-steps? --help lists the flags");
  CHECK(nearest_with("--sed") == "did you mean --seed? --help lists the flags");
  CHECK(nearest_with("--timeuot") == "did you mean --timeout? --help lists the flags");
}

TEST_CASE("a value that is not allowed is refused with those that are") {
  const auto refused = [](const char* flag, const char* value, const std::string& allowed) {
    CAPTURE(flag);
    CAPTURE(value);
    CHECK(refusal({flag, value}) ==
          std::string(flag) + " cannot be '" + value + "'; hint: " + allowed);
  };
  refused("--device", "gpu", "use auto, cpu or cuda");
  refused("--device", "", "use auto, cpu or cuda");
  constexpr const char* kStrategies =
      "use full-shard, zero2, zero1, replicate, hybrid-shard, hfsdp or hpz";
  refused("--strategy", "stage-3", kStrategies);
  refused("--strategy", "hybrid", "did you mean hybrid-shard? " + std::string(kStrategies));
  refused("--strategy", "fullshard", "did you mean full-shard? " + std::string(kStrategies));
  refused("--param-dtype", "float64", "use float32, bfloat16 or float16");
  refused("--reduce-dtype", "float16", "use float32 or bfloat16");
  refused("--reshard-after-forward", "maybe", "use true or false");
  refused("--map-shards", "2", "use true or false");
  refused("--nccl-registration", "true", "use off, windows or zero-cta");
  for (const char* value : {"-1", "1001", "1.5", "two", "1x", "", " 1", "99999999999"}) {
    refused("--prefetch", value, "use a whole number from 0 to 1000");
  }
  for (const char* value : {"", "-1GiB", "16G", "lots", "1e9", "16GiBs", "9e18TiB"}) {
    refused("--memory-limit", value,
            "use a size like 16GiB (1024 MiB each), 500MB (1000 kB each) or 1073741824");
  }
  for (const char* value : {"nan", "-nan", "inf", "1e999", "0", "1e7", "1x", ""}) {
    refused("--timeout", value, "use a number from 0.1 to 1000000");
  }
}

TEST_CASE("what can be switched on may stand alone") {
  CHECK(parse({"--offload"}).engine.cpu_offload);
  CHECK(parse({"--offload", "--recompute", "--prefetch", "2"}).engine.cpu_offload);
  CHECK(parse({"--offload", "--recompute", "--prefetch", "2"}).engine.recompute == 1);
  CHECK_FALSE(parse({"--offload", "false"}).engine.cpu_offload);
  CHECK_FALSE(parse({"--offload=no"}).engine.cpu_offload);
  CHECK(refusal({"--offload", "perhaps"}) ==
        "--offload cannot be 'perhaps'; hint: use true or false");
}

TEST_CASE("a flag without a value is refused with what it means") {
  CHECK(refusal({"--prefetch"}) ==
        "--prefetch has no value; hint: use --prefetch N: units gathered ahead");
  CHECK(refusal({"--device"}) ==
        "--device has no value; hint: use --device NAME: device of the ranks: auto (GPUs, else the "
        "CPU), cpu, cuda");
}

TEST_CASE("what others call a flag is told its name here") {
  const auto hint = [](const char* word, const std::vector<std::string>& own) -> std::string {
    try {
      RunOptions{}.refuse({word}, own);
    } catch (const InvalidArgument& error) {
      return error.text().hint;
    }
  };
  const auto here = [](const std::string& name) {
    return "use " + name + "; --help lists the flags";
  };
  const std::vector<std::string> own{"--batch", "--block-size", "--lr", "--num-train-epochs"};
  CHECK(hint("--per_device_train_batch_size", own) == here("--batch"));
  CHECK(hint("--max_seq_length=384", own) == here("--block-size"));
  CHECK(hint("--learning-rate", own) == here("--lr"));
  CHECK(hint("--epochs", own) == here("--num-train-epochs"));
  CHECK(hint("--bf16", {}) == here("--param-dtype bfloat16"));
  CHECK(hint("--gradient_checkpointing", {}) == here("--recompute 1"));
  CHECK(hint("--use_cpu", {}) == here("--device cpu"));
  // If the program has no such flag, the hint refers to --help.
  CHECK(hint("--per_device_train_batch_size", {}) == "--help lists the flags");
}

TEST_CASE("all flags that do not exist are refused in one error, each with its hint") {
  CHECK(refusal(
            {"--devise", "cpu", "--prefetch", "2", "--eval_steps=100", "--foo", "-1", "--bf16"}) ==
        "there are no flags --devise, --eval_steps, --foo, --bf16; hint: --devise: did you mean "
        "--device? --eval_steps: evaluate the written model: nothing is evaluated during "
        "training; --bf16: use --param-dtype bfloat16; --help lists the flags");
  CHECK(refusal({"--devise", "cpu", "--devise", "cuda"}) ==
        "there is no flag --devise; hint: did you mean --device? --help lists the flags");
  CHECK(refusal({"--resume"}) ==
        "there is no flag --resume; hint: leave it out: the program saves no checkpoints; --help "
        "lists "
        "the flags");
  CHECK(parse({"--typo", "--help"}).help);
  try {
    RunOptions{}.refuse({"--do_train", "--data_seed", "3"}, {"--seed"},
                        {{"--do-train", "it always trains"}});
  } catch (const InvalidArgument& error) {
    CHECK(std::string(error.what()) ==
          "there are no flags --do_train, --data_seed; hint: --do_train: it always trains; "
          "--data_seed: use --seed, which seeds everything; --help lists the flags");
  }
}

TEST_CASE("help is asked for with --help or -h, and lists flags with their values now") {
  CHECK(parse({"--help", "--typo"}).help);
  CHECK(parse({"-h"}).help);
  const RunOptions run = parse({"--prefetch", "2", "--timeout", "0.5"});
  CHECK(run.help_text() ==
        "  --device NAME                 device of the ranks: auto (GPUs, else the CPU),\n"
        "                                cpu, cuda [auto]\n"
        "  --strategy NAME               full-shard (ZeRO-3), zero2, zero1, replicate\n"
        "                                (DDP), or in groups of --shard ranks:\n"
        "                                hybrid-shard, hfsdp, hpz [full-shard]\n"
        "  --shard N                     ranks per group; 0: derived from --replicate [0]\n"
        "  --replicate N                 groups of ranks; 0: derived from --shard [0]\n"
        "  --param-dtype DTYPE           type of forward and backward: float32, bfloat16,\n"
        "                                float16\n"
        "  --reduce-dtype DTYPE          type of gradients between ranks: float32,\n"
        "                                bfloat16 [float32]\n"
        "  --reshard-after-forward BOOL  true: gather again in backward; false: keep\n"
        "                                [true]\n"
        "  --keep-last-units N           last units that stay gathered for backward [0]\n"
        "  --prefetch N                  units gathered ahead [2]\n"
        "  --recompute N                 1: backward recomputes each unit's activations;\n"
        "                                N: every N-th's [0]\n"
        "  --offload BOOL                true: main shards, gradients, optimizer state on\n"
        "                                the host [false]\n"
        "  --optimizer-in-backward BOOL  true: backward updates each unit; no clipping\n"
        "                                [false]\n"
        "  --memory-limit BYTES          most that a rank may hold on its device, with\n"
        "                                LibTorch's tensors; 0: no limit [0]\n"
        "  --map-shards BOOL             true: read peers' float32 shards in place;\n"
        "                                false: gather them [true]\n"
        "  --nccl-registration KIND      slots registered with NCCL: off, windows,\n"
        "                                zero-cta (copy engines gather) [off]\n"
        "  --timeout SECONDS             seconds to wait for a rank before the job fails\n"
        "                                [0.5]\n");
  CHECK(run.help_text({.diagnostics = true}) ==
        run.help_text() +
            "  --trace FILE                  write a trace of all ranks, for ui.perfetto.dev\n"
            "  --ablate WHAT                 communication: time the same run without it; it\n"
            "                                learns nothing\n");
}

TEST_CASE("flags for another parser change the options that they were asked of") {
  RunOptions run{.engine = {.mixed_precision = {.param_dtype = scalar_type_of(DType::kFloat16)}}};
  for (const RunFlag& flag : run.engine_flags()) {
    if (flag.name == "--param-dtype") {
      CHECK(flag.value == "float16");
      flag.set("bf16");
    }
    if (flag.name == "--device") flag.set("cpu");
  }
  CHECK(run.engine.mixed_precision.param_dtype == scalar_type_of(DType::kBFloat16));
  CHECK(run.mesh.device == DeviceKind::kCpu);
}

}  // namespace
}  // namespace fsdp
