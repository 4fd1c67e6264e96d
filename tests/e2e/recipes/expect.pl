#!/usr/bin/perl
# expect: holds a plan against expect.json of a recipe, and the planned rows of its README against that.
#
#   expect.pl RECIPE PLAN.json            prints a line for each difference; exit code 1 if there is one
#   expect.pl --write RECIPE PLAN.json    takes the plan over into both
#
# The same: whether it fits, the layout; bytes of the fullest rank within 2%, or within an eighth for this machine's
# processor (no cluster.yaml), as wider vectors take larger scratch; tokens/s is only to be a number.
use strict;
use warnings;

my $write = @ARGV && $ARGV[0] eq '--write' ? shift @ARGV : '';
my ($recipe, $plan) = @ARGV;
my ($faults, $readme_file) = (0, "$recipe/README.md");
sub slurp { open my $f, '<', $_[0] or die "$_[0]: $!\n"; local $/; return scalar(<$f>) // ''; }
sub put { open my $f, '>', $_[0] or die "$_[0]: $!\n"; print $f $_[1]; close $f or die "$_[0]: $!\n"; }
sub fault { print "$_[0]\n"; $faults++; }

# ---- the plan ----

my ($layout, $rest) = slurp($plan) =~ /"chosen":\{"layout":(\{.*?\})(.*?)"alternatives"/s
    or do { print "nothing fits\n"; exit 1; };
my ($fits) = $rest =~ /"fits":(\w+)/;
my ($rate) = $rest =~ /"tokens_per_s":([\d.e+-]+)/;
my $bytes = 0;
for ($rest =~ /"total":(\d+)/g) { $bytes = $_ if $_ > $bytes; }
$rate = sprintf '%.3g', $rate // 0;
$rate += 0;

put("$recipe/expect.json", qq({"fits": $fits,\n "layout": $layout,\n "fullest_rank_bytes": $bytes,\n "tokens_per_s": $rate}\n)) if $write;
my $expected = -e "$recipe/expect.json" ? slurp("$recipe/expect.json") : '';
my ($fits_there) = $expected =~ /"fits": (\w+)/;
my ($layout_there) = $expected =~ /"layout": (\{.*?\})/;
my ($bytes_there) = $expected =~ /"fullest_rank_bytes": (\d+)/;
my ($rate_there) = $expected =~ /"tokens_per_s": ([\d.e+]+)/;
if (!defined $bytes_there || !defined $rate_there) { print "expect.json is missing or damaged\n"; exit 1; }
fault("it fits: $fits, expected $fits_there") if $fits ne $fits_there;
fault("the layout is $layout, expected $layout_there") if $layout ne $layout_there;
fault("the fullest rank has $bytes bytes, expected $bytes_there")
    if abs($bytes - $bytes_there) > (-e "$recipe/cluster.yaml" ? 0.02 : 0.125) * $bytes_there;
fault('tokens/s is no number') unless $rate > 0;

# ---- the README ----

my $job = slurp("$recipe/job.yaml");
my ($steps) = $job =~ /^  steps: (\d+)/m;
my $hours = 0;
if ($rest =~ /"step_time_s":([\d.e+-]+)/ && $steps) {
    my ($batch) = $job =~ /^  global_batch: (\d+)/m;
    my ($context) = $job =~ /^  context: (\d+)/m;
    $hours = $steps * $batch * $context / $rate_there / 3600;
}
my %l = $layout_there =~ /"(\w+)":"?([^",]+)/g;
my @words = map { $l{$_} > 1 ? "$_ $l{$_}" : () } qw(tp pp dp cp ep);
push @words, "ZeRO $l{zero}" if $l{zero};
push @words, 'micro-batch ' . $l{micro_batch};
push @words, $l{schedule} . ($l{virtual_stages} > 1 ? " x$l{virtual_stages}" : '') if $l{schedule} ne 'none';
push @words, "recompute $l{recompute}" if $l{recompute} ne 'none';
my $speed = $rate_there >= 1e6 ? sprintf('%.1fM', $rate_there / 1e6) : $rate_there >= 1e4 ? sprintf('%.0fk', $rate_there / 1e3)
    : $rate_there >= 1e3 ? sprintf('%.1fk', $rate_there / 1e3) : sprintf('%.0f', $rate_there);
my $time = $hours >= 72 ? sprintf('%.0f days', $hours / 24) : $hours >= 2 ? sprintf('%.0f h', $hours) : sprintf('%.0f min', $hours * 60);
my $memory = $bytes_there >= 1 << 30 ? sprintf('%.1f GiB', $bytes_there / (1 << 30)) : sprintf('%.0f MiB', $bytes_there / (1 << 20));
my %rows = ('layout, planned' => join(', ', @words), 'memory, planned' => "$memory on the fullest device",
    'time, planned' => "$speed tokens/s: $time for $steps steps");
# what a processor takes is not known from here
$rows{'time, planned'} = 'by `heddle plan` on the machine itself' unless -e "$recipe/cluster.yaml";
my $readme = slurp($readme_file);
for my $title (sort keys %rows) {
    my $row = "| $title | $rows{$title} |";
    $readme =~ s/^\| \Q$title\E \|.*$/$row/m if $write;
    fault("README.md should say: $row") if index($readme, "\n$row\n") < 0;
}
put($readme_file, $readme) if $write;
fault("README.md has no row | $_ |") for grep { $readme !~ /^\| $_ \| .+ \|$/m } qw(model hardware data);
print "if the plan is right: tests/e2e/recipes/recipes.sh --write\n" if $faults;
exit($faults ? 1 : 0);
